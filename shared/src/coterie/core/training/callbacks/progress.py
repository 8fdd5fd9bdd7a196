"""A progress bar that counts rounds, or a few plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import lightning
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from coterie.core.terminal import console

_SILENCE = 30.0  # most seconds without a line, where rounds are shorter


class RoundProgress(ProgressBar):
    """Lightning's progress bar, with block and round in place of epoch and batch.

    It shows the loss, the validation metric and the time left, too.

    On a terminal there is one bar a block; elsewhere a plain line every ``every`` rounds, after a
    round when the last line is half a minute old, and at the end of each block, so that a log file
    stays short. The time left is that of the block, and an upper bound where blocks end early.

    Args:
        instead_of: the bar of a Trainer, which it stands for while rounds are made.
        every: rounds between plain lines.
        live: draw a bar; None asks whether the output is a terminal.
        clock: seconds.

    Attributes:
        block: that is shown, with ``done`` rounds, after ``before`` rounds of other blocks.
    """

    BAR_FORMAT = "{desc} {bar:20} {elapsed}<{remaining}{postfix}"

    def __init__(
        self,
        instead_of: ProgressBar | None = None,
        every: int = 25,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._clock, self._since = clock, clock()
        self._other, self.every = instead_of, every
        self.limit, self.metric = 0, ""
        self.live = sys.stdout.isatty() if live is None else live
        self.block: int | None = None
        self.before = self.done = 0
        self._shown: dict[str, str] = {}
        self._bar: tqdm[Any] | None = None
        self._drawn = True  # the last round needs no plain line any more

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Learn how many rounds there are, and hide the other bar."""
        federation = pl_module.run.federation
        self.limit = federation.rounds
        self.metric = "" if federation.monitor is None else federation.monitor.key
        if self._other is not None:
            self._other.disable()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Show the round."""
        run = pl_module.run
        if run.block != self.block:
            self._end_block()
            self.block, self.before = run.block, run.round - 1
        self.done = run.round - self.before
        for key in ("fed/loss", self.metric):
            if key in run.journal.scalars:
                self._shown[key.rsplit("/", 1)[-1]] = f"{run.journal.scalars[key]:.4f}"
        if self.live:
            self._draw()
        else:
            self._drawn = False
            if self.done % self.every == 0 or self._clock() - self._since >= _SILENCE:
                self._write()

    def on_train_end(self, *_: Any) -> None:
        """Show the last round."""
        self._end_block()

    def on_exception(self, *_: Any) -> None:
        """Leave the last round in view."""
        self._end_block()

    def gives_back(self) -> bool:
        """Show the other bar again, if this one stands for it; say whether."""
        if self._other is not None:
            self._other.enable()
        return self._other is not None

    def enable(self) -> None:
        """Do nothing: a bar of rounds is left out by leaving it out of the callbacks."""

    def disable(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """The block that is shown, and its rounds."""
        return {"block": self.block, "before": self.before, "done": self.done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self.block, self.before = state_dict["block"], state_dict["before"]
        self.done = state_dict["done"]

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
