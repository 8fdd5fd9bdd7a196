"""What carries an ask to clients, wherever they run, and what comes back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.protocol.messages import Aligned, AnyStep, PerClient
from coterie.core.protocol.uploads import Fold


@dataclass(frozen=True)
class Request:
    """One ask, as an exchange gets it.

    Attributes:
        step: what is asked for.
        down: the message that all receive, or `PerClient` or `Aligned` ones.
        ids: ``(R,)`` who is asked.
        when: coordinates of the round: block, round in it.
        draw: how many asks for this step came before in the round. With ``when`` it is folded into
            the clients' keys, so that asking for one step changes no draw of another.
        fold: what the server makes of the uploads; an exchange may fold a part of them where they
            are, if the fold has a name.
        everyone: whether all clients of the block are meant, not some that were chosen: also who is
            not there.
        waits: whether it must not be missed: who gives no answer gets it with what is asked next.
        secret: whether the sum leaves behind masks, so that the server learns that of all alone.
        again: how many other requests with the same coordinates were answered before, as the round
            is tried again: noise is drawn anew.
    """

    step: AnyStep[Any, Any]
    down: Any
    ids: Tensor
    when: tuple[int, ...]
    draw: int = 0
    fold: Fold | None = None
    everyone: bool = False
    waits: bool = False
    again: int = 0
    secret: bool = False

    def down_for(self, ids: Tensor) -> Any:
        """What the clients ``ids``, ``(K,)``, receive; one client's in the list form."""
        if isinstance(self.down, PerClient):
            return self.down.messages[int(ids)]
        return self.down.of(ids) if isinstance(self.down, Aligned) else self.down


@dataclass(frozen=True)
class Answers:
    """What some of those who were asked answered.

    Attributes:
        ids: ``(A,)`` whose answer counts.
        up: their uploads, stacked, or of the one client in the list form; None where the step has
            none, nobody's counts, or ``total`` holds them.
        refused: client id -> why its answer does not count.
        total: the uploads folded, where the exchange did that.
        sizes: field -> bytes of the uploads before they were folded.
        dtypes: path -> dtype of a ``total`` that is behind masks.
        silent: whether those who are refused gave no answer at all.
    """

    ids: Tensor
    up: Any = None
    refused: dict[int, str] = field(default_factory=dict)
    total: Any = None
    sizes: dict[str, int] = field(default_factory=dict)
    silent: bool = False
    dtypes: dict[str, str] | None = None


@dataclass(frozen=True)
class Heard:
    """How an ask went.

    Attributes:
        step: name of what was asked for.
        least: how many answers there must be for the server to go on.
        asked: how many clients were.
        answered: how many answers count.
        silent: how many gave none.
    """

    step: str
    least: int
    asked: int
    answered: int
    silent: int


class TooFew(UserError):
    """Too few clients are there, or have answered, for a round to count."""


class Exchange(ABC):
    """Clients that can be reached, wherever they run.

    An implementation runs the transaction of every client (`coterie.core.federation.in_process`)
    where the client's state is: step, guard, commit, middleware. What it yields has been judged by
    the form that the message declares, and follows an order that no timing changes.

    Of clients that are always there, a round is tried once.

    Attributes:
        patience: how often a round is tried.
        starts: how often the run's server was started, where that is counted; else 0.
        folds: whether it can make one upload of those of several clients, where they are.
        hides: whether it can hide that from the server.
    """

    patience: int = 1
    starts: int = 0
    folds: ClassVar[bool] = False
    hides: ClassVar[bool] = False

    def begin(self, turn: int, attempt: int) -> None:
        """Begin a round, the ``turn``-th of the run, or try it again: clients go back."""
        return

    def check(self, heard: Heard) -> None:
        """Check that enough have answered an ask.

        Raises:
            TooFew: they have not, and may in another try.
        """
        return

    def mark(self) -> Any:
        """Remember where the clients are before a round, to go back there."""
        return None

    def go_back(self, mark: Any) -> None:
        """Go back to where `mark` was asked; what clients did since is taken back."""
        return

    def keep_best(self) -> None:
        """The checkpoint that is about to be written is of the best round so far.

        Whoever can reach the clients' folders keeps the private state that they have now for it.
        """
        return

    @property
    def seconds_elsewhere(self) -> float:
        """Processor time so far of what works for this process alone, beside it; 0 if nothing."""
        return 0.0

    def rest(self) -> None:
        """Nothing is asked for a while: what only speeds up asking may end."""
        return

    @abstractmethod
    def present(self, block: int) -> Tensor:
        """Who takes part in a block, ``(R,)`` int64 ascending."""

    @abstractmethod
    def enrol(self, ids: Tensor, block: int) -> Tensor:
        """Let the newcomers among ``ids`` make their private state; return their ids."""

    @abstractmethod
    def ask(self, request: Request) -> Iterator[Answers]:
        """Let clients answer, part by part.

        Raises:
            TypeError: the clients have no such step.
        """

    @abstractmethod
    def to_plain(self) -> Any:
        """The private state that is kept here, for a checkpoint; None where clients keep it."""

    @abstractmethod
    def load_plain(self, plain: Any) -> None:
        """Restore what `to_plain` gave.

        Raises:
            KeyError: it is of other clients, or of another method.
        """
