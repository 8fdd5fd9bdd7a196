"""A progress bar that counts rounds, or a few plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from coterie.core.callbacks.contract import RoundCallback, Rounds
from coterie.core.terminal import console

_SILENCE = 30.0  # most seconds without a line, where rounds are shorter


class RoundProgress(RoundCallback):
    """Show block, round, loss, the validation metric and the time left.

    On a terminal there is one bar a block; elsewhere a plain line every ``every`` rounds, after a
    round when the last line is half a minute old, and at the end of each block, so that a log file
    stays short. The time left is that of the block, and an upper bound where blocks end early.

    Args:
        limit: most rounds of a block.
        metric: key of the measure that is shown beside the loss; None shows none.
        every: rounds between plain lines.
        live: draw a bar; None asks whether the output is a terminal.
        clock: seconds.

    Attributes:
        block: that is shown, with ``done`` rounds, after ``before`` rounds of other blocks.
    """

    kept = ("block", "before", "done")
    BAR_FORMAT = "{desc} {bar:20} {elapsed}<{remaining}{postfix}"

    def __init__(
        self,
        limit: int,
        metric: str | None = None,
        every: int = 25,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._since = clock, clock()
        self.limit, self.metric, self.every = limit, metric, every
        self.live = sys.stdout.isatty() if live is None else live
        self.block: int | None = None
        self.before = self.done = 0
        self._shown: dict[str, str] = {}
        self._bar: tqdm[Any] | None = None
        self._drawn = True  # the last round needs no plain line any more

    def write(self, run: Rounds) -> None:
        """Show the round."""
        if run.block != self.block:
            self._end_block()
            self.block, self.before = run.block, run.round - 1
        self.done = run.round - self.before
        for key in ("fed/loss", self.metric):
            if key is not None and key in run.journal.scalars:
                self._shown[key.rsplit("/", 1)[-1]] = f"{run.journal.scalars[key]:.4f}"
        if self.live:
            self._draw()
        else:
            self._drawn = False
            if self.done % self.every == 0 or self._clock() - self._since >= _SILENCE:
                self._write()

    def end(self, run: Rounds) -> None:
        """Show the last round."""
        self._end_block()

    failed = end

    def _title(self) -> str:
        return f"Block {self.block} round {self.done}/{self.limit}"

    def _draw(self) -> None:
        if self._bar is None:  # tqdm itself draws it at most ten times a second
            self._bar = tqdm(
                total=self.limit,
                initial=self.done,
                dynamic_ncols=True,
                file=sys.stdout,
                bar_format=self.BAR_FORMAT,
            )
        self._bar.set_description_str(self._title(), refresh=False)
        self._bar.set_postfix(self._shown, refresh=False)
        self._bar.update(self.done - self._bar.n)

    def _write(self) -> None:
        numbers = " ".join(f"{name}={value}" for name, value in self._shown.items())
        line = f"{self._title()} {numbers}".rstrip()
        console(soft_wrap=True).print(line)
        self._drawn, self._since = True, self._clock()

    def _end_block(self) -> None:
        """Leave the last round of the block in view; the next one gets a bar of its own."""
        if not self._drawn:
            self._write()
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()
            self._bar = None
