"""MTAL, Algorithm 1: the server half. It passes on what organisations tell each other.

It averages nothing and holds no model. It sees residuals, outputs and where ratings are, as the
organisations that they go to do. Of the other methods the server looks on, see `Observer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from coterie.assisted.messages import (
    ALIGN,
    COMBINE,
    FIT,
    MEET,
    PATTERN,
    RECEIVE,
    RESIDUAL,
    Alignment,
    Fits,
    Outputs,
    Pattern,
    Places,
    Received,
    Residuals,
    Turn,
)
from coterie.assisted.prediction_messages import (
    ANSWER,
    KEEP_BEST,
    MEASURE,
    QUERY,
    TRAIN,
    Epochs,
    Loss,
    Predictions,
    Query,
    Tested,
)
from coterie.assisted.protection import added, check_sum
from coterie.assisted.quality import monitor_of, note_progress, note_quality
from coterie.assisted.routes import Routes, align, check_common, misplaced
from coterie.assisted.settings import FEWEST, Settings
from coterie.core.federation.selection import NO_ROUND, BestRound, Selecting
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import PerClient
from coterie.core.protocol.replies import ListReplies
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.keys import Key

S = TypeVar("S", bound="RelayState | ObserverState")
NOBODY = torch.empty(0, dtype=torch.int64)


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
        """Alignment: let the organisations find out whom they have in common.

        What they predict without assistance competes with the rounds.
        """
        return self.opened(self.met(state, cohort), cohort)

    def met(self, state: RelayState, cohort: Cohort) -> RelayState:
        """Let the organisations find out whom they have in common."""
        cohort.enrol()
        announced = cohort.ask(ALIGN, None)
        rows = {k: up.rows for k, up in announced.ups.items()}
        check_common(rows)
        if self._sums:
            check_sum(rows)
        numbers = align(rows)
        told = PerClient({k: Alignment(each) for k, each in numbers.items()})
        placed = _part(cohort, announced.ids).ask(PATTERN, told)
        columns = {k: int(up.columns) for k, up in announced.ups.items()}
        ups = _placed(placed, numbers, columns, cohort)
        routes = Routes.of(numbers, ups, columns)
        peers = PerClient({k: routes.peers(k, ups) for k in ups})
        _part(cohort, routes.ids).ask(MEET, peers)
        return replace(state, routes=state.routes.append(routes))

    def round(self, state: RelayState, cohort: Cohort, key: Key) -> RelayState:
        """One assistance round; who does not answer is left out of the rest of it."""
        routes, t = state.routes[0], state.round + 1
        residuals = self.residuals(state, cohort)
        enough = not self._sums or len(residuals) >= FEWEST
        fitting = _part(cohort, residuals.ids if enough else NOBODY)
        fits = fitting.ask(FIT, PerClient(routes.pass_residuals(residuals.ups, t, self._sums)))
        outputs = PerClient(self._outputs(routes, fits, fitting, t))
        combined = _part(cohort, fits.ids).ask(COMBINE, outputs)
        note_progress(combined, cohort.journal)
        return self.validated(replace(state, round=t), cohort)

    def residuals(self, state: RelayState, cohort: Cohort) -> ListReplies[Residuals]:
        """Ask for the residuals of a round."""
        routes, t = state.routes[0], state.round + 1
        turn = PerClient({k: Turn(t, routes.n_cells(k)) for k in routes.ids.tolist()})
        return _part(cohort, routes.ids).ask(RESIDUAL, turn)

    def measure(self, state: RelayState, cohort: Cohort, split: Split) -> None:
        """Let organisations measure the newest predictions, or test those of the best round."""
        members = _part(cohort, state.routes[0].ids)
        down: Predictions | PerClient[Predictions] = Predictions(split, {}, {}, state.round)
        if split == "test":
            asked = members.ask(QUERY, Tested(_best(state)))
            cells = _named(asked, state.routes[0], cohort)
            answered = self.answered(state, members, cells)
            members = _part(members, torch.tensor(list(answered), dtype=torch.int64))
            down = PerClient(answered)
        note_quality(members.ask(MEASURE, down), cohort.journal, split, self.settings)

    def keep(self, state: RelayState, cohort: Cohort) -> RelayState:
        """Keep nothing: organisations have the models of all rounds."""
        return state

    def answered(
        self, state: RelayState, cohort: Cohort, cells: Mapping[int, Places]
    ) -> dict[int, Predictions]:
        """Prediction stage: let organisations answer for each other's cells.

        Args:
            state: after training.
            cohort: of organisations.
            cells: what each wants outputs for.

        Returns:
            What each gets; with sums nothing where fewer than three ask.
        """
        routes, best = state.routes[0], _best(state)
        if best == 0:  # nobody has a model
            return {to: Predictions("test", {}, {}, 0) for to in cells}
        if self._sums:
            return self._summed(routes, cohort, dict(cells), best)
        queries = routes.pass_queries(cells, best)
        answers = _part(cohort, torch.tensor(list(queries))).ask(ANSWER, PerClient(queries)).ups
        return {
            to: Predictions(
                "test",
                {str(k): up.values[str(to)] for k, up in answers.items() if k != to and up.values},
                {str(k): up.rounds for k, up in answers.items() if k != to and up.values},
                best,
            )
            for to in cells
        }

    @property
    def _sums(self) -> bool:
        """Whether organisations learn sums of outputs only."""
        return self.settings.protect.sum

    def _outputs(
        self, routes: Routes, fits: ListReplies[Fits], asked: Cohort, t: int
    ) -> dict[int, Outputs]:
        if not self._sums:
            return routes.pass_outputs(fits.ups, t)
        masked = {k: up.masked for k, up in fits.ups.items() if up.masked is not None}
        totals = added(masked, asked.ids.tolist())
        asked.journal.scalar("mtal/dropped", totals is None)
        return {to: Outputs({}, t, totals[to] if totals else None) for to in fits.ups}

    def _summed(
        self, routes: Routes, members: Cohort, cells: dict[int, Places], best: int
    ) -> dict[int, Predictions]:
        """The same by sums; where someone does not answer, the others are asked once more."""
        for attempt in range(len(cells)):
            if len(cells) < FEWEST:
                break
            queries = routes.pass_queries(cells, best, masked=True, attempt=attempt)
            answering = _part(members, torch.tensor(list(cells)))
            answers = answering.ask(ANSWER, PerClient(queries)).ups
            masked = {k: up.masked for k, up in answers.items() if up.masked is not None}
            if totals := added(masked, cells, attempt):
                return {to: Predictions("test", {}, {}, best, one) for to, one in totals.items()}
            cells = {k: cells[k] for k in answers}
        return {}


def _best(state: RelayState) -> int:
    """Round that is tested and served: the best one, or the last if none was measured."""
    return state.chosen.round if state.chosen.measured else state.round


def _placed(
    replies: ListReplies[Pattern],
    numbers: Mapping[int, Tensor],
    columns: Mapping[int, int],
    cohort: Cohort,
) -> dict[int, Pattern]:
    """Leave out, by name, organisations that name cells that they cannot have."""
    found = {}
    for k, up in replies.ups.items():
        if why := misplaced(up, numbers[k], columns[k]):
            cohort.journal.refuse("pattern", k, why)
        else:
            found[k] = up
    return found


def _named(replies: ListReplies[Query], routes: Routes, cohort: Cohort) -> dict[int, Places]:
    """The cells that organisations want predicted, but for what they cannot have."""
    found = {}
    for k, up in replies.ups.items():
        if why := misplaced(up.cells, routes.numbers[str(k)], routes.columns[str(k)]):
            cohort.journal.refuse("query", k, why)
        else:
            found[k] = up.cells
    return found


def _part(cohort: Cohort, ids: Tensor) -> Cohort:
    """The clients of these numbers that are in a cohort."""
    return cohort.part(torch.isin(cohort.ids, ids).nonzero().flatten())


class Watching(Selecting[S]):
    """Lets organisations train, each by itself, and chooses one round for all of them."""

    settings: Settings

    def round(self, state: S, cohort: Cohort, key: Key) -> S:
        """Some epochs of everybody."""
        state = replace(state, round=state.round + 1)
        note_loss(cohort.ask(TRAIN, Epochs(state.round)), cohort.journal)
        return self.validated(state, cohort)

    def measure(self, state: S, cohort: Cohort, split: Split) -> None:
        """Let organisations measure their newest models, or test those of the best round."""
        replies = cohort.ask(MEASURE, Predictions(split, {}, {}, state.round))
        note_quality(replies, cohort.journal, split, self.settings)

    def keep(self, state: S, cohort: Cohort) -> S:
        """Let organisations keep their models of this round."""
        cohort.ask(KEEP_BEST, None)
        return state


class RelayOnce(Watching[RelayState], Relay):
    """Passes residuals on once; then organisations need neither it nor each other (ours).

    Args:
        settings: with the reading's choices resolved.
    """

    def start_block(self, state: RelayState, block: int, cohort: Cohort, key: Key) -> RelayState:
        """Alignment, and the residuals of F⁰ for all who have rows in common."""
        state = self.met(state, cohort)
        residuals = self.residuals(state, cohort)
        passed = state.routes[0].pass_residuals(residuals.ups, 1)
        found = {to: targets.residuals for to, targets in passed.items()}
        if self.settings.protect.own == "protected":  # what was made of its own it does not know
            found = {to: each | {str(to): residuals.ups[to].values} for to, each in found.items()}
        received = PerClient({to: Received(each) for to, each in found.items()})
        _part(cohort, residuals.ids).ask(RECEIVE, received)
        return self.opened(state, cohort)


@dataclass(frozen=True)
class ObserverState:
    """What the server knows.

    Attributes:
        round: t, rounds done.
        chosen: the best one on the validation data of all organisations.
    """

    round: int = 0
    chosen: BestRound = NO_ROUND


class Observer(Watching[ObserverState]):
    """Looks on while organisations train, each for itself.

    Args:
        settings: with the reading's choices resolved.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = self.limits = settings
        self.monitor = monitor_of(settings)

    def begin(self, key: Key) -> ObserverState:
        """Know nothing yet."""
        return ObserverState()

    def start_block(
        self, state: ObserverState, block: int, cohort: Cohort, key: Key
    ) -> ObserverState:
        """Let organisations begin."""
        cohort.enrol()
        return state


def note_loss(replies: ListReplies[Loss], journal: Journal) -> None:
    """Note how well organisations fit their own ratings: the mean over all cells."""
    ups = list(replies.ups.values())
    journal.scalar("fed/clients", len(ups))
    if not ups:
        return
    losses = torch.stack([up.loss for up in ups]).double()
    sizes = torch.stack([up.cells for up in ups])
    journal.scalar("fed/loss", losses @ (sizes / sizes.sum()).double())
    journal.per_client("fed/loss", replies.ids, losses)
