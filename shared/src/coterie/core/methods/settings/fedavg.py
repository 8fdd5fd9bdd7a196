"""Settings that all methods share, and their checks. Torch-free; docstrings are ``--help``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import each_at_least, each_positive


class Checked:
    """Base of all settings and options here, where the chain of their checks ends.

    A method's own parameters are a class of options, its settings inherit from these options and
    from `FedAvgSettings`; every check calls that of the next class by ``super()``.
    """

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True)
class FedAvgSettings(Checked):
    """FedAvg (McMahan et al., AISTATS 2017, Algorithm 1); symbols as there."""

    fraction: float = 1.0
    """C: share of the clients that take part in a round, in (0, 1]."""
    epochs: int = 1
    """E: passes of a client over its data in a round."""
    batch_size: int | None = None
    """B: local mini-batch size; null is B = ∞, all data in one batch (FedSGD if E is 1)."""
    lr: float = 0.1
    """η: learning rate of the clients."""
    weight_decay: float = 0.0
    """L2 pull on all parameters in local training."""
    clip: float | None = None
    """Largest L2 norm of the gradient of a local step; null clips nothing."""
    weighting: Literal["samples", "equal"] = "samples"
    """How clients are averaged: by their numbers of samples n_k, or all alike."""
    rounds: int = 100
    """T: communication rounds (of a block, in a stream)."""
    evaluate_every: int = 1
    """Rounds from one evaluation on all clients to the next; round T is evaluated too; 0 is
    never."""
    keep_models: bool = True
    """Clients keep the model they trained last, which is measured as their personal one; false
    saves memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.fraction <= 1:
            raise UserError(f"fraction must be in (0, 1], got {self.fraction}")
        each_at_least(self, 1, "epochs", "rounds", "batch_size")
        each_positive(self, "lr", "clip")
        each_at_least(self, 0, "weight_decay", "evaluate_every")
        finite(self, "lr", "weight_decay", "clip")


def finite(settings: object, *names: str) -> None:
    """Check that fields of settings are no infinity and not NaN; None passes.

    Raises:
        UserError: one is not finite.
    """
    for name in names:
        value = getattr(settings, name)
        if value is not None and not math.isfinite(value):
            raise UserError(f"'{name}' must be a finite number, not {value}")


def finite_positive(settings: object, *names: str) -> None:
    """Check that fields of settings are finite and above 0; None passes."""
    each_positive(settings, *names)
    finite(settings, *names)


def steady(strength_key: str, strength: float, lr_key: str, lr: float) -> None:
    """Check that gradient steps on strength/2 ‖w - v‖² alone bring w nearer to v.

    Raises:
        UserError: they do not, as lr times strength is 2 or more.

    Example:
        >>> steady("lam", 15.0, "lr", 0.2)
        Traceback (most recent call last):
        ...
        coterie.core.errors.UserError: 'lr' times 'lam' is 3, training diverges from 2 on: lower one
    """
    if lr * strength >= 2:
        raise UserError(
            f"'{lr_key}' times '{strength_key}' is {lr * strength:g}, training diverges from 2 on: "
            "lower one"
        )


def must_keep_models(method: str, keep_models: bool) -> None:
    """Check that clients keep the model that a method starts from.

    Raises:
        UserError: they do not.
    """
    if not keep_models:
        raise UserError(f"{method} starts from the client's own model: set 'keep_models' to true")
