"""One number for a whole stream of blocks, for sweeps to optimise."""

from __future__ import annotations

import math

from coterie.core.callbacks.contract import RoundCallback, Rounds
from coterie.core.metrics.monitor import Monitor

STREAM = "_stream"  # ends the names of numbers that only the last round of a run has


class StreamScore(RoundCallback):
    """Note ``<monitor>_stream`` in the last round.

    It is the mean, over the blocks after the first, of each block's best validation score (with
    one block, that block's). The best round of the whole run would not do: in a stream the first
    block often scores best, and what a continual method does later would not count.

    Attributes:
        best: score of every block so far.
    """

    kept = ("best",)

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.best: dict[int, float] = {}

    def note(self, run: Rounds) -> None:
        """Track the best of every block; note the mean when the run is finished."""
        block, score = run.block, run.journal.scalars.get(self.monitor.key, math.nan)
        if not math.isnan(score):
            self.best[block] = self.monitor.best((self.best.get(block, math.nan), score))
        if run.finished and self.best:
            later = [best for block, best in self.best.items() if block > 0]
            scores = later or list(self.best.values())
            run.journal.scalar(f"{self.monitor.key}{STREAM}", sum(scores) / len(scores))
