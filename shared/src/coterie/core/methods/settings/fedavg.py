"""Settings of the personal branch beside a method's upload. Torch-free; docstrings are help."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import each_at_least, each_positive


@dataclass(frozen=True)
class BranchOptions:
    """A personal branch v_i = a_i u_i + (1 - a_i) W, which is never sent.

    W is the model that the client received and u_i what it made of it: its trained model, or one
    of a few epochs by the gradient of its own loss alone. Both choices are made on its validation
    samples (a_i as the mixing weight of APFL, Deng et al., 2020, which learns it by gradients).

    Raises:
        UserError: a value is out of range.
    """

    use: bool | None = None
    """Clients keep a personal branch beside the model that they send, and it is what is measured as
    their own. Default: no, but in PAGE's reading decoupled."""
    shares: int = 11
    """Values of a_i that are tried, from 0 (the model received) to 1."""
    epochs: int = 5
    """Epochs from the model received for each of `rates`; 0 = only the model that is sent is
    mixed."""
    rates: tuple[float, ...] = (1.0, 0.3, 0.1)
    """Learning rates of these epochs that are tried, as shares of `train.lr`."""

    def __post_init__(self) -> None:
        each_at_least(self, 2, "shares", prefix="branch.")
        each_at_least(self, 0, "epochs", prefix="branch.")
        if not all(0 < rate <= 1 for rate in self.rates):
            raise UserError(
                f"'branch.rates' are shares of the learning rate, in (0, 1], not {self.rates}"
            )

    @property
    def tuned(self) -> tuple[float, ...]:
        """Rates that are tried: none without epochs.

        Example:
            >>> BranchOptions(epochs=0).tuned
            ()
        """
        return self.rates if self.epochs else ()


# Settings that all methods share, and their checks. Torch-free; docstrings are ``--help``.


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

    plain: ClassVar[str] = ""
    """Name of a method that is derived for gradient descent on the whole model, and refuses another
    optimizer or a part of it."""

    fraction: float = 1.0
    """C: share of the clients that take part in a round, in (0, 1]."""
    epochs: int = 1
    """E: passes of a client over its data in a round."""
    batch_size: int | None = None
    """B: local mini-batch size; null is B = ∞, all data in one batch (FedSGD if E is 1)."""
    lr: float = 0.1
    """η: learning rate of the clients."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """What makes local steps: plain gradient descent, or Adam (Kingma and Ba, ICLR 2015)."""
    keep_moments: bool = True
    """Adam's moments and step count stay with a client from round to round; false begins anew."""
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
    share: tuple[str, ...] = ()
    """Patterns of the names of the parameters that are federated, as experts.*; the others stay
    with the client. All if none is named."""
    chosen_by: tuple[Literal["server", "global", "personal"], ...] = ("server", "personal")
    """Whose measure on validation samples a round is chosen by: the mean over those named that
    there are; as `server` the global model on the server's samples, as `global` on the clients',
    as `personal` the clients' own models."""
    keep_models: bool = True
    """Clients keep the model they trained last, which is measured as their personal one; false
    saves memory."""
    branch: BranchOptions = field(default_factory=BranchOptions)
    """A personal branch beside the model that is sent, which takes the place of it there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.fraction <= 1:
            raise UserError(f"fraction must be in (0, 1], got {self.fraction}")
        each_at_least(self, 1, "epochs", "rounds", "batch_size")
        each_positive(self, "lr", "clip")
        each_at_least(self, 0, "weight_decay", "evaluate_every")
        finite(self, "lr", "weight_decay", "clip")
        if not self.chosen_by:
            raise UserError("'chosen_by' names nobody: choose among server, global and personal")
        if self.plain and self.optimizer != "sgd":
            raise UserError(f"{self.plain} is defined for gradient descent: set 'optimizer' to sgd")
        if self.plain and self.share:
            raise UserError(f"{self.plain} shares the whole model: leave 'share' out")
        if self.branch.use and (self.share or not self.keep_models):
            raise UserError("'branch.use' needs 'keep_models', and the whole model to be shared")


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
