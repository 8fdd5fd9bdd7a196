"""A `LightningModule` without a Trainer: what works in a client, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import lightning
import torch
from lightning.pytorch.core import hooks

from coterie.core.errors import UserError
from coterie.core.front.step_logs import hear

_WORK = {"setup", "configure_model"}
_OF_DATA = {
    "prepare_data",
    "train_dataloader",
    "val_dataloader",
    "test_dataloader",
    "predict_dataloader",
}
_OF_TRAINER = (
    "configure_callbacks",
    "configure_gradient_clipping",
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "lr_scheduler_step",
)
_OF_OLD = (  # of Lightning before 2.0, whose Trainer refuses them by now
    "training_step_end",
    "training_epoch_end",
    "validation_step_end",
    "validation_epoch_end",
    "test_step_end",
    "test_epoch_end",
)
_OF_LOGGERS = {
    "experiment",
    "log_metrics",
    "log_hyperparams",
    "log_graph",
    "log_image",
    "log_audio",
    "log_video",
    "log_text",
    "log_table",
    "watch",
    "save_dir",
    "log_dir",
}


class _InClient:
    """Stands before the user's class, so that a step meets this in place of a Trainer."""

    def log(self, name: str, value: Any, *_: Any, reduce_fx: Any = "mean", **__: Any) -> None:
        """Take note of a number."""
        if reduce_fx not in ("mean", torch.mean):
            raise UserError(f"self.log('{name}', reduce_fx={reduce_fx!r}): only means are taken")
        hear(name, value)

    def log_dict(self, dictionary: Any, *_: Any, **options: Any) -> None:
        """Take note of numbers by name."""
        for name, value in dictionary.items():
            self.log(name, value, reduce_fx=options.get("reduce_fx", "mean"))

    @property
    def trainer(self) -> NoReturn:
        raise _not_there("self.trainer")

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        raise _not_there("self.trainer")

    @property
    def current_epoch(self) -> NoReturn:
        raise _not_there("self.current_epoch")

    @property
    def global_step(self) -> NoReturn:
        raise _not_there("self.global_step")


def _refusing(name: str) -> Callable[..., NoReturn]:
    def method(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise _not_there(f"self.{name}()")

    return method


for _name in (
    "optimizers",
    "lr_schedulers",
    "manual_backward",
    "all_gather",
    "print",
    "clip_gradients",
    "toggle_optimizer",
    "untoggle_optimizer",
):
    setattr(_InClient, _name, _refusing(_name))


def _not_there(what: str) -> UserError:
    return UserError(
        f"a step uses {what}, and clients train without a Trainer of their own: leave it out, or "
        "give what it is for as an attribute of the module"
    )


def of_no_logger(error: AttributeError) -> UserError | None:
    """Say of an error that a step asked `self.logger`, which is None; None = it is another one."""
    if error.obj is not None or error.name not in _OF_LOGGERS:
        return None
    return UserError(
        f"a step uses self.logger.{error.name}, and clients have no logger of their own: log "
        "numbers by self.log, which the Trainer's loggers get, and leave out what is none"
    )


def as_client(module: lightning.LightningModule) -> Any:
    """Make a module meet `_InClient` in place of a Trainer; it is changed, and given back."""
    kind = type(module)
    if not issubclass(kind, _InClient):
        module.__class__ = type(kind.__name__, (_InClient, kind), {"__module__": kind.__module__})
    return module


def check_module(module: lightning.LightningModule) -> None:
    """Refuse what a Trainer would do with a module, and nobody does here.

    Raises:
        UserError: it has manual optimization, no training step, or hooks that would not be called.
    """
    kind, base = type(module), lightning.LightningModule
    name = kind.__name__
    if kind.training_step is base.training_step:
        raise UserError(f"{name} has no training_step, which is what is trained: write one")
    if not module.automatic_optimization:
        raise UserError(
            f"{name} has automatic_optimization = False, and clients' steps are made for it: leave "
            "it out, and return the loss from training_step"
        )
    known = [
        one
        for owner in (hooks.ModelHooks, hooks.DataHooks, hooks.CheckpointHooks)
        for one in vars(owner)
        if not one.startswith("_")
    ]
    for hook in (*known, *_OF_TRAINER, *_OF_OLD):
        if hook in _WORK | _OF_DATA:
            continue
        if hook in vars(module) or getattr(kind, hook, None) is not getattr(base, hook, None):
            raise UserError(
                f"{name} has {hook}, which nobody calls in a client: move it into the step, or "
                "leave it out"
            )
