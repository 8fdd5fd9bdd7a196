"""What happens beside the rounds: one base class, for runs with and without Lightning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from coterie.core.errors import UserError
from coterie.core.federation.ledger import Ledger
from coterie.core.protocol.journal import Journal


class Rounds(Protocol):
    """What a callback reads of a run; `coterie.core.run.driver.FederatedRun` says what each is."""

    journal: Journal
    ledger: Ledger
    round: int
    block: int
    block_open: bool
    finished: bool
    reopened: bool

    def to_plain(self) -> dict[str, Any]:
        """Everything a checkpoint must hold: tensors, plain values, append-only parts."""
        ...


class RoundCallback:
    """Notes numbers in the journal, or writes them somewhere; a subclass has what it needs.

    All callbacks have noted a round before the first one writes it. Lightning's callbacks are
    another thing: they see a run that goes on under a `lightning.Trainer`.

    Example:
        >>> class Stop(RoundCallback):
        ...     def note(self, run):
        ...         run.journal.scalar("fed/odd", run.round % 2)
    """

    kept: ClassVar[tuple[str, ...]] = ()
    """Attributes that a resumed run must have, plain values."""

    def start(self, run: Rounds) -> None:
        """Before the first round, after a checkpoint was restored."""

    def before_round(self, run: Rounds) -> None:
        """Before a round."""

    def note(self, run: Rounds) -> None:
        """After a round: add to its journal."""

    def write(self, run: Rounds) -> None:
        """After a round: take its journal somewhere."""

    def end(self, run: Rounds) -> None:
        """After the last round of this process."""

    def failed(self, run: Rounds) -> None:
        """After an exception or an interruption, which goes on its way."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know: plain values. Default: the attributes `kept`."""
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for name in self.kept:
            setattr(self, name, state[name])


def states(callbacks: Sequence[RoundCallback]) -> dict[str, dict[str, Any]]:
    """States by the names of the callbacks' classes, for a checkpoint; the empty ones left out."""
    found = {type(callback).__name__: callback.state_dict() for callback in callbacks}
    return {name: state for name, state in found.items() if state}


def restore(callbacks: Sequence[RoundCallback], saved: dict[str, dict[str, Any]]) -> None:
    """Give every callback its part of what `states` made; one that had none starts afresh.

    Raises:
        UserError: a callback keeps something else by now.
    """
    for callback in callbacks:
        state = saved.get(type(callback).__name__)
        if state is None:
            continue
        try:
            callback.load_state_dict(state)
        except (KeyError, TypeError) as error:
            raise UserError(
                f"the checkpoint does not fit ({type(callback).__name__}: {error}): it is of "
                "another version; start a new run with another --run.name"
            ) from error
