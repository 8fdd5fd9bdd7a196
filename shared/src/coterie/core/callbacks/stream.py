"""One number for a whole stream of blocks, for sweeps to optimise."""

from __future__ import annotations

import math
from typing import Any

from coterie.core.callbacks.contract import RoundCallback, Rounds
from coterie.core.metrics.monitor import Monitor

STREAM = "_stream"  # ends the names of numbers that only the last round of a run has


class StreamScore(RoundCallback):
    """Note ``<monitor>_stream`` in the last round.

    It is the mean, over the blocks after the first, of each block's best validation score (with
    one block, that block's). The best round of the whole run would not do: in a stream the first
    block often scores best, and what a continual method does later would not count.

    Args:
        monitor: what rounds are chosen by.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self._best: dict[int, float] = {}

    def note(self, run: Rounds) -> None:
        """Track the best of every block; note the mean when the run is finished."""
        block, score = run.block, run.journal.scalars.get(self.monitor.key, math.nan)
        if not math.isnan(score):
            self._best[block] = self.monitor.best((self._best.get(block, math.nan), score))
        if run.finished and self._best:
            later = [best for block, best in self._best.items() if block > 0]
            scores = later or list(self._best.values())
            run.journal.scalar(f"{self.monitor.key}{STREAM}", sum(scores) / len(scores))

    def state_dict(self) -> dict[str, Any]:
        """Best scores so far, for a resumed run."""
        return {"best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self._best = state["best"]
