"""Which round of a block is the best one, when to stop waiting for a better, and its test."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from coterie.core.metrics.monitor import START, VALIDATION, Monitor, of_start
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.server import Decision, Server
from coterie.core.settings.sections import ValidationSettings
from coterie.core.tensors.keys import Key

_VALIDATORS = Key.from_seed(0).fold("validators")  # the same ones in every round, block and run


@dataclass(frozen=True)
class BestRound:
    """The best round so far.

    Attributes:
        round: its number in the block, from 1; 0 for the model that the block started from, and
            before anything was measured.
        score: its score on validation data; NaN before.

    Example:
        >>> rmse = Monitor("eval/rmse", lower_is_better=True)
        >>> best = BestRound()
        >>> for round_, score in enumerate([0.9, 0.7, 0.8, 0.8], start=1):
        ...     best = best.seen(score, round_, rmse)
        >>> best, best.over(4, rounds=100, patience=2)
        (BestRound(round=2, score=0.7), True)
    """

    round: int = 0
    score: float = math.nan

    @property
    def measured(self) -> bool:
        """Whether there is one: somebody had validation data."""
        return not math.isnan(self.score)

    def seen(self, score: float, round_: int, monitor: Monitor) -> BestRound:
        """Compare with one more round; gives itself where that is not better."""
        return BestRound(round_, score) if monitor.better(score, than=self.score) else self

    def over(self, done: int, rounds: int, patience: int, since: int = 0) -> bool:
        """Whether a search has come to its end.

        Args:
            done: rounds done.
            rounds: most of them, from ``since``.
            patience: rounds without a better one that are waited for.
            since: rounds done when the search began.
        """
        return done - since >= rounds or done - max(self.round, since) >= patience


NO_ROUND = BestRound()
"""Before a round was measured."""


def unmeasured(
    history: Iterable[Mapping[str, float]], results: Mapping[str, float], monitor: Monitor
) -> list[str]:
    """Say, in a line, where no round could be called the best as nobody had validation data.

    Args:
        history: what all rounds noted.
        results: final measurements; `Selecting` has noted in them where a last round was tested.
        monitor: what rounds are chosen by.

    Example:
        >>> unmeasured([{"eval/auc": 0.7}], {"test/best_round": 1.0}, Monitor("eval/auc"))
        []
    """
    if not any(monitor.key in measured for measured in history):
        return [
            f"{monitor.key} was not measured in any round, as nobody had validation data: no round "
            "is the best, the last one is kept"
        ]
    blocks = [name.split("/")[1] for name in results if name.endswith("/last_round")]
    if not blocks:
        return []
    named = ", ".join(name.removeprefix("block") for name in blocks)
    return [
        f"{monitor.key} was not measured in block {named}, as nobody had validation data there: no "
        "round is the best, the last one is kept"
    ]


def untrained(results: Mapping[str, float]) -> list[str]:
    """Say, in a line, where no round was better than the model that it started from.

    Example:
        >>> untrained({"test/best_round": 0.0})
        ['no round was better on validation than what it started from, which is tested and kept']
    """
    found = [
        name for name, round_ in results.items() if name.endswith("/best_round") and not round_
    ]
    blocks = [name.split("/")[1].removeprefix("block") for name in found if name.count("/") > 1]
    where = f" of block {', '.join(blocks)}" if blocks else ""
    return [
        f"no round{where} was better on validation than what it started from, which is tested and "
        "kept"
    ] * bool(found)


def best_of(history: Iterable[Mapping[str, float]], monitor: Monitor) -> BestRound:
    """Find the best round of a block by what its rounds measured, the oldest first.

    Round 0 is the model that the block started from, if that was measured.

    Example:
        >>> best_of([{"fed/loss": 1.0}, {"eval/auc": 0.7}], Monitor("eval/auc"))
        BestRound(round=2, score=0.7)
    """
    best, start = NO_ROUND, of_start(monitor.key)
    for number, measured in enumerate(history, start=1):
        if number == 1:
            best = best.seen(measured.get(start, math.nan), 0, monitor)
        best = best.seen(measured.get(monitor.key, math.nan), number, monitor)
    return best


class SelectingState(Protocol):
    """What `Selecting` reads of a server's state, a dataclass."""

    @property
    def round(self) -> int:
        """Rounds done in the block."""
        ...

    @property
    def chosen(self) -> BestRound:
        """The best one of them."""
        ...


class Limits(Protocol):
    """When a search for the best round ends."""

    @property
    def rounds(self) -> int:
        """Most rounds of a block."""
        ...

    @property
    def patience(self) -> int:
        """Rounds without a better one before the block ends, at a round that is validated."""
        ...


S = TypeVar("S", bound=SelectingState)


class Selecting(Server[S]):
    """A server that validates its rounds, stops in time, and tests the best round.

    A subclass says how a model is measured and what keeping one means, and ends its `round` by
    `validated`.

    Attributes:
        monitor: what the best round is chosen by; `measure` notes it.
        limits: when a block ends.
        validation: which rounds are measured, and on how many clients.
    """

    monitor: Monitor
    limits: Limits
    validation = ValidationSettings()

    def measure(self, state: S, cohort: Cohort, split: Split) -> None:
        """Note in the journal how good a model is.

        Args:
            state: after a round, or after the last one.
            cohort: all clients; those of `validators` are asked for the validation.
            split: "valid" for the model of the round just done, "test" for that of the best one.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how a model is measured")

    def keep(self, state: S, cohort: Cohort) -> S:
        """Keep the model of the round just done: it is the best so far."""
        raise NotImplementedError(f"{type(self).__name__} must say what it keeps of a round")

    def is_due(self, state: S) -> bool:
        """Whether the round just done is validated."""
        done = state.round
        return done % self.validation.every == 0 or done >= self.limits.rounds

    def validators(self, cohort: Cohort) -> Cohort:
        """Give the clients that validate: all, or a fixed sample of so many, which is noted."""
        drawn = cohort.draw(self.validation.clients, _VALIDATORS)
        if len(drawn) < len(cohort):
            cohort.journal.scalar("eval/clients", len(drawn))
        return drawn

    def remarks(self, most: int) -> list[str]:
        """Say, in a line each, by what rounds were chosen if not by all rounds and clients.

        Args:
            most: clients of the largest block.
        """
        every, count = self.validation.every, self.validation.clients
        found = [f"the best round is the best of every {every} rounds"] * (every > 1)
        if count < most:
            found.append(f"rounds were chosen by {count:,} of {most:,} clients, tests are of all")
        return found

    def validated(self, state: S, cohort: Cohort) -> S:
        """Measure the round just done if it is due, and keep it if it is the best so far."""
        if not self.is_due(state):
            return state
        self.measure(state, cohort, "valid")
        score = cohort.journal.scalars.get(self.monitor.key, math.nan)
        chosen = state.chosen.seen(score, state.round, self.monitor)
        if chosen is state.chosen:
            return state
        kept: Any = self.keep(state, cohort)
        return replace(kept, chosen=chosen)

    def opened(self, state: S, cohort: Cohort) -> S:
        """Let the model that a block starts from compete with its rounds, as round 0.

        For where that model is more than random numbers: training that only hurts is not served
        then. What it measures is noted as `of_start` names it.
        """
        self.measure(state, cohort, "valid")
        cohort.journal.rename(VALIDATION, START)
        score = cohort.journal.scalars.get(of_start(self.monitor.key), math.nan)
        chosen = state.chosen.seen(score, 0, self.monitor)
        if chosen is state.chosen:
            return state
        kept: Any = self.keep(state, cohort)
        return replace(kept, chosen=chosen)

    def validate(self, state: S, cohort: Cohort) -> None:
        """Measure the model of the round just done on the clients that validate."""
        self.measure(state, cohort, "valid")

    def test(self, state: S, cohort: Cohort) -> None:
        """Test the best round on all clients."""
        self.measure(state, cohort, "test")

    def end_block(self, state: S, cohort: Cohort, key: Key) -> S:
        """Test the best round, and note which one it was."""
        return self.conclude(self.settled(state, cohort), cohort)

    def settled(self, state: S, cohort: Cohort) -> S:
        """Keep the last round of a block where none was measured: it is tested and gone on from."""
        return state if state.chosen.measured else self.keep(state, cohort)

    def conclude(self, state: S, cohort: Cohort, where: str = "test") -> S:
        """Test a settled state, and note which round it is of.

        That is ``best_round``, or ``last_round`` where nothing was measured to choose one by.
        """
        self.test(state, cohort)
        measured, chosen = state.chosen.measured, state.chosen.round
        name = "best_round" if measured else "last_round"
        cohort.journal.scalar(f"{where}/{name}", chosen if measured else state.round)
        return state

    def stop(self, state: S, history: Sequence[dict[str, float]]) -> Decision:
        """End the block after the last round, or when a better one was waited for in vain.

        Where nothing is measured there is none to wait for: all rounds are made.
        """
        if not self.is_due(state):  # a block's last round is one that may be chosen
            return "go"
        rounds, measured = self.limits.rounds, state.chosen.measured
        over = state.chosen.over(state.round, rounds, self.limits.patience if measured else rounds)
        return "block" if over else "go"
