"""Settings of the personal branch beside a method's upload. Torch-free; docstrings are help."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.errors import UserError
from coterie.core.settings.sections import each_at_least


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
