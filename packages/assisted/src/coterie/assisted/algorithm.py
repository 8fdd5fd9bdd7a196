"""MTAL, Algorithm 1: the server half. It passes on what organisations tell each other.

It averages nothing and holds no model. It sees residuals, outputs and where ratings are, as the
organisations that they go to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.assisted.messages import (
    ALIGN,
    ANSWER,
    COMBINE,
    FIT,
    MEASURE,
    MEET,
    PATTERN,
    QUERY,
    RESIDUAL,
    Alignment,
    Predictions,
    Tested,
    Turn,
)
from coterie.assisted.readings import resolve
from coterie.assisted.routes import Routes, align, check_common
from coterie.assisted.scores import monitor_of, note_progress, note_quality
from coterie.assisted.settings.run import Settings
from coterie.core.federation.selection import NO_ROUND, BestRound, Selecting
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.card import Card
from coterie.core.protocol.cohort import Cohort, PerClient
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class RelayState:
    """What the server knows.

    Attributes:
        routes: what goes to whom; one entry, made when the organisations met.
        round: t, rounds done.
        chosen: the best one on validation data.
    """

    routes: Appended[Routes] = field(default_factory=Appended)
    round: int = 0
    chosen: BestRound = NO_ROUND


class Relay(Selecting[RelayState]):
    """Passes residuals and outputs on between organisations.

    Args:
        settings: with the reading's choices resolved.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = self.limits = settings
        self.monitor = monitor_of(settings)

    def begin(self, key: Key) -> RelayState:
        """Know nobody yet."""
        return RelayState()

    def start_block(self, state: RelayState, block: int, cohort: Cohort, key: Key) -> RelayState:
        """Alignment: let the organisations find out whom they have in common."""
        cohort.enrol()
        announced = cohort.ask(ALIGN, None)
        rows = {k: up.rows for k, up in announced.ups.items()}
        check_common(rows)
        numbers = align(rows)
        told = PerClient({k: Alignment(each) for k, each in numbers.items()})
        placed = _part(cohort, announced.ids).ask(PATTERN, told)
        columns = {k: int(up.columns) for k, up in announced.ups.items()}
        routes = Routes.of(numbers, placed.ups, columns)
        peers = PerClient({k: routes.peers(k, placed.ups) for k in placed.ups})
        _part(cohort, placed.ids).ask(MEET, peers)
        return replace(state, routes=state.routes.append(routes))

    def round(self, state: RelayState, cohort: Cohort, key: Key) -> RelayState:
        """One assistance round; who does not answer is left out of the rest of it."""
        routes, t = state.routes[0], state.round + 1
        turn = PerClient({k: Turn(t, routes.n_cells(k)) for k in routes.ids.tolist()})
        residuals = _part(cohort, routes.ids).ask(RESIDUAL, turn)
        targets = PerClient(routes.pass_residuals(residuals.ups, t))
        fits = _part(cohort, residuals.ids).ask(FIT, targets)
        outputs = PerClient(routes.pass_outputs(fits.ups, t))
        combined = _part(cohort, fits.ids).ask(COMBINE, outputs)
        note_progress(combined, cohort.journal)
        return self.validated(replace(state, round=t), cohort)

    def measure(self, state: RelayState, cohort: Cohort, split: Split) -> None:
        """Let organisations measure the newest predictions, or test those of the best round."""
        members = _part(cohort, state.routes[0].ids)
        down: Predictions | PerClient[Predictions] = Predictions(split, {}, {}, state.round)
        if split == "test":
            down = self._answered(state, members)
        note_quality(members.ask(MEASURE, down), cohort.journal, split, self.settings)

    def keep(self, state: RelayState, cohort: Cohort) -> RelayState:
        """Keep nothing: organisations have the models of all rounds."""
        return state

    def _answered(self, state: RelayState, members: Cohort) -> PerClient[Predictions]:
        """Prediction stage: let all answer for each other's test cells."""
        routes, best = state.routes[0], state.chosen.round or state.round
        asked = members.ask(QUERY, Tested(best))
        cells = {k: up.cells for k, up in asked.ups.items()}
        queries = PerClient(routes.pass_queries(cells, best))
        answers = _part(members, asked.ids).ask(ANSWER, queries).ups
        return PerClient(
            {
                to: Predictions(
                    "test",
                    {str(k): up.values[str(to)] for k, up in answers.items() if k != to},
                    {str(k): up.rounds for k, up in answers.items() if k != to},
                    best,
                )
                for to in answers
            }
        )


def _part(cohort: Cohort, ids: Tensor) -> Cohort:
    """The clients of these numbers that are in a cohort."""
    return cohort.part(torch.isin(cohort.ids, ids).nonzero().flatten())


def make_server(card: Card, ids: Tensor, folder: object = None) -> Relay:
    """Make the server half from the public card."""
    return Relay(resolve(card.read(Settings)))
