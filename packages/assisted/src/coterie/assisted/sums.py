"""The server of the method sums: it adds up what organisations send, and moves one model by it.

It looks at no organisation's sums by themselves, so they can leave behind masks
(``aggregate.secret``), and noise on the total hides any one of them (``privacy.at server``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.assisted.algorithm import NOBODY, ObserverState, Watching
from coterie.assisted.quality import monitor_of
from coterie.assisted.samples.moving import Mover, movers
from coterie.assisted.samples.sums import named, params_of
from coterie.assisted.settings import Settings
from coterie.assisted.sums_messages import JOIN, SUM, TAKE, Joining, Moved, Step, Summands
from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import Params, RowState
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.uploads import Sum
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class AdderState(ObserverState):
    """What the server knows.

    Attributes:
        members: ``(K,)`` int64 numbers of the organisations that have joined.
        rows: number of rows that all of them have.
        unit: root mean square of their residuals.
        params: of the model.
        memory: of Adam, where there is one.
    """

    members: Tensor = field(default_factory=NOBODY.clone)
    rows: int = 0
    unit: float = 1.0
    params: Params = field(default_factory=dict)
    memory: RowState | None = None


class Adder(Watching[AdderState]):
    """Adds up the sums of organisations.

    Args:
        settings: with the reading's choices resolved.
    """

    sums = True

    def __init__(self, settings: Settings) -> None:
        self.settings = self.limits = settings
        self.monitor = monitor_of(settings)

    def begin(self, key: Key) -> AdderState:
        """Know nobody yet."""
        return AdderState()

    def start_block(self, state: AdderState, block: int, cohort: Cohort, key: Key) -> AdderState:
        """See that all have the same rows, and send them the model to begin with."""
        cohort.enrol()
        joined = cohort.ask(JOIN, None)
        check_alike({k: up.names for k, up in joined.ups.items()})
        rows = int(next(iter(joined.ups.values())).rows) if joined.ups else 0
        state = replace(state, members=joined.ids, rows=rows, unit=unit_of(joined.ups))
        dtype = getattr(torch, self.settings.engine.dtype)
        for name, mover in self._movers(state).items():
            params, memory = mover.begin(key.fold(name), dtype)
            state = replace(
                state,
                params=state.params | named(name, params),
                memory=state.memory if memory is None else memory,
            )
        self._send(state, cohort)
        return self.opened(state, cohort)

    def round(self, state: AdderState, cohort: Cohort, key: Key) -> AdderState:
        """One step of the model, by the sums of who answers."""
        state, journal = replace(state, round=state.round + 1), cohort.journal
        each = self._movers(state)
        shapes: dict[str, tuple[int, ...]] = {}
        for name, mover in each.items():
            shapes |= named(name, mover.shapes())
        replies = self._of(state, cohort).ask(SUM, Step(state.round, shapes), reduce=Sum())
        journal.scalar("fed/clients", len(replies))
        total: Summands | None = replies.total
        if total is None or not total.samples > 0 or not total.cells > 0:
            return self.validated(state, cohort)
        journal.scalar("fed/loss", total.loss.double() / total.cells)
        for name, mover in each.items():
            params, memory = mover.moved(
                params_of(state.params, name),
                state.memory,
                params_of(total.values, name),
                int(total.cells),
                int(total.samples),
            )
            state = replace(
                state,
                params=state.params | named(name, params),
                memory=state.memory if memory is None else memory,
            )
        self._send(state, cohort)
        return self.validated(state, cohort)

    def _send(self, state: AdderState, cohort: Cohort) -> None:
        self._of(state, cohort).ask(TAKE, Moved(state.round, state.params, state.unit))

    def _movers(self, state: AdderState) -> dict[str, Mover]:
        return movers(self.settings, state.rows) if state.rows else {}

    def _of(self, state: AdderState, cohort: Cohort) -> Cohort:
        """Who of a cohort has joined.

        What a whole cohort is asked to take also reaches, later, who is away at the moment: its
        sums must be of the model that the others have.
        """
        joined = torch.isin(cohort.ids, state.members)
        return cohort if bool(joined.all()) else cohort.part(joined.nonzero().flatten())


def check_alike(digests: Mapping[int, Tensor]) -> None:
    """Refuse organisations that do not all have the same rows.

    Args:
        digests: of the rows of each.

    Raises:
        UserError: they have not.
    """
    first, *others = digests.values() if digests else [NOBODY]
    if not all(torch.equal(first, one) for one in others):
        raise UserError(
            "the method sums needs organisations that all know the same users (or items), and "
            "these do not: set data.common 1, or take the method residuals"
        )


def unit_of(joined: Mapping[int, Joining]) -> float:
    """Root mean square of all residuals; 1 where all are 0, or there are none."""
    squares = sum(float(up.square) * int(up.cells) for up in joined.values())
    cells = sum(int(up.cells) for up in joined.values())
    return math.sqrt(squares / cells) if squares > 0 else 1.0
