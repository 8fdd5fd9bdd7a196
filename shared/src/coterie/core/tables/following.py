"""How a run of a table is followed to its end, under Lightning's Trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import lightning

from coterie.core.run.driver import FederatedRun
from coterie.core.tables.result import RunResult
from coterie.core.training.callbacks.notes import Costs
from coterie.core.training.trainer import fit

AfterRound = Callable[[RunResult], None]


def follow(
    run: FederatedRun,
    measuring: Collection[str] = ("evaluate",),
    after_round: AfterRound = lambda result: None,
) -> RunResult:
    """Run a federation to its end and keep the numbers of its rounds.

    Beside what the run notes, ``cost/up_bytes`` and ``cost/down_bytes`` are what crossed without
    measuring, ``cost/cpu_seconds`` the processor time with it.

    Args:
        run: from where it stands.
        measuring: names of the steps that measure, or make ready to measure.
        after_round: notes more after every round.
    """
    monitor, result = run.federation.monitor, RunResult()
    if monitor is not None:
        result.chosen_by, result.lower_is_better = monitor.key, monitor.lower_is_better
    fit(run, [_Following(run, result, measuring, after_round)])
    return result


class _Following(lightning.Callback):
    """Adds the numbers of each round to a result."""

    def __init__(
        self,
        run: FederatedRun,
        result: RunResult,
        measuring: Collection[str],
        after_round: AfterRound,
    ) -> None:
        self.run, self.result, self.measuring = run, result, measuring
        self.after_round = after_round
        self._traffic, self._began = _traffic(run, measuring), self._spent()

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the clock."""
        self._began = self._spent()

    def _spent(self) -> float:
        """Processor seconds, also of forked processes."""
        return time.process_time() + self.run.exchange.seconds_elsewhere

    def on_train_batch_end(self, *_: Any) -> None:
        """Note the round."""
        seconds = self._spent() - self._began
        noted = {n: v for n, v in self.run.journal.scalars.items() if n not in Costs.names}
        before, self._traffic = self._traffic, _traffic(self.run, self.measuring)
        crossed = {name: size - before[name] for name, size in self._traffic.items()}
        self.result.note(noted | {"cost/cpu_seconds": seconds} | crossed)
        self.after_round(self.result)


def _traffic(run: FederatedRun, measuring: Collection[str]) -> dict[str, float]:
    """Bytes so far, without those of measuring."""
    found = {"cost/up_bytes": 0.0, "cost/down_bytes": 0.0}
    for row in run.ledger.rows():
        if row["step"] not in measuring:
            found[f"cost/{row['direction']}_bytes"] += row["bytes"]
    return found
