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


# What `configure_optimizers` says, as settings of local training; the rest is refused.

_SGD = {"momentum": 0, "dampening": 0, "nesterov": False, "maximize": False}
_ADAM = {
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "amsgrad": False,
    "maximize": False,
    "decoupled_weight_decay": False,
}


def optimizer_settings(module: lightning.LightningModule) -> dict[str, Any]:
    """Read the optimizer of a module: ``optimizer``, ``lr`` and ``weight_decay``.

    Args:
        module: whose `configure_optimizers` is called; a module without one gives nothing.

    Raises:
        UserError: it says something else than SGD without momentum or Adam as torch has it by
            default, for all parameters alike.
    """
    if type(module).configure_optimizers is lightning.LightningModule.configure_optimizers:
        return {}
    optimizer = _only(module.configure_optimizers())
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam):
        raise UserError(
            f"configure_optimizers gives {kind.__name__}: clients make steps by torch.optim.SGD "
            "without momentum or torch.optim.Adam, return one of these"
        )
    fixed = _SGD if kind is torch.optim.SGD else _ADAM
    groups = optimizer.param_groups
    for group in groups:
        for name, value in fixed.items():
            if name in group and group[name] != value:
                raise UserError(
                    f"configure_optimizers gives {kind.__name__} with {name}={group[name]}, which "
                    f"clients' steps have not: leave it at {value}"
                )
        for name in ("lr", "weight_decay"):
            if float(group[name]) != float(groups[0][name]):
                raise UserError(
                    f"configure_optimizers gives groups of parameters with {name} of their own: "
                    "give all of them one, or freeze some by requires_grad_(False)"
                )
    _check_all(module, optimizer)
    return {
        "optimizer": "sgd" if kind is torch.optim.SGD else "adam",
        "lr": float(groups[0]["lr"]),
        "weight_decay": float(groups[0]["weight_decay"]),
    }


def _only(given: Any) -> torch.optim.Optimizer:
    """The one optimizer; see `lightning.LightningModule.configure_optimizers` for the forms."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], list | tuple):
        if given[1]:
            raise _scheduler()
        given = given[0]
    if isinstance(given, list | tuple):
        if len(given) != 1:
            raise UserError(
                f"configure_optimizers gives {len(given)} optimizers, and a client has one: return "
                "one, of all parameters"
            )
        given = given[0]
    if isinstance(given, dict):
        if given.get("lr_scheduler") is not None:
            raise _scheduler()
        given = given.get("optimizer")
    if given is None:
        raise UserError(
            "configure_optimizers gives no optimizer: return torch.optim.SGD or torch.optim.Adam, "
            "or leave the method out and give lr="
        )
    if not isinstance(given, torch.optim.Optimizer):
        raise UserError(
            f"configure_optimizers gives a {type(given).__name__}: return torch.optim.SGD or "
            "torch.optim.Adam"
        )
    return given


def _scheduler() -> UserError:
    return UserError(
        "configure_optimizers gives a learning rate scheduler, which has no step to count among "
        "rounds: return the optimizer alone"
    )


def _check_all(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """All that wants a gradient must be in the optimizer; else a client trains more."""
    held = {id(value) for group in optimizer.param_groups for value in group["params"]}
    for name, value in module.named_parameters():
        if value.requires_grad and id(value) not in held:
            raise UserError(
                f"configure_optimizers leaves '{name}' out, which would be trained all the same: "
                "freeze it by requires_grad_(False)"
            )
