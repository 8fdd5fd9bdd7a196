"""What `configure_optimizers` says, as settings of local training; the rest is refused."""

from __future__ import annotations

from typing import Any

import lightning
import torch

from coterie.core.errors import UserError

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
