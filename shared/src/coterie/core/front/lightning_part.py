"""A `LightningModule` without a Trainer: what works in a client, and what is refused."""

from __future__ import annotations

from typing import Any, NoReturn

import lightning
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


class _InClient:
    """Stands before the user's class, so that a step meets this in place of a Trainer."""

    def log(self, name: str, value: Any, *_: Any, reduce_fx: Any = "mean", **__: Any) -> None:
        """Take note of a number."""
        if reduce_fx != "mean":
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

    def optimizers(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        raise _not_there("self.optimizers()")

    def lr_schedulers(self) -> NoReturn:
        """Refuse."""
        raise _not_there("self.lr_schedulers()")

    def manual_backward(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        raise _not_there("self.manual_backward")

    def all_gather(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        raise _not_there("self.all_gather")


def _not_there(what: str) -> UserError:
    return UserError(
        f"a step uses {what}, and clients train without a Trainer of their own: leave it out, or "
        "give what it is for as an attribute of the module"
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
    for hook in (*known, *_OF_TRAINER):
        if hook in _WORK | _OF_DATA or not hasattr(base, hook):
            continue
        if getattr(kind, hook, None) is not getattr(base, hook):
            raise UserError(
                f"{name} has {hook}, which nobody calls in a client: move it into the step, or "
                "leave it out"
            )
