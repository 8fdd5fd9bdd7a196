"""A progress bar that counts rounds, or a few plain lines where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from rich.console import Console

from coterie.core.callbacks.contract import rounds_of


class RoundProgress(TQDMProgressBar):
    """Show block, round, loss, the validation metric and the time left.

    On a terminal there is one bar a block; elsewhere a plain line every ``every`` rounds and at
    the end of each block, so that a log file stays short. The time left is that of the block, and
    an upper bound where blocks end early.

    Args:
        limits: most rounds of a block; one number for all blocks, or one a block.
        metric: key of the measure that is shown beside the loss; None shows none.
        every: rounds between plain lines.
        live: draw a bar; None asks whether the output is a terminal.
    """

    BAR_FORMAT = "{desc} {bar:20} {elapsed}<{remaining}{postfix}"

    def __init__(
        self,
        limits: int | Sequence[int],
        metric: str | None = None,
        every: int = 25,
        live: bool | None = None,
    ) -> None:
        super().__init__()
        self.limits = limits
        self.metric = metric
        self.every = every
        self.live = sys.stdout.isatty() if live is None else live
        self._block: int | None = None
        self._before = 0  # rounds of the blocks before
        self._done = 0
        self._shown: dict[str, str] = {}
        self._drawn = True  # the last round needs no plain line any more

    def init_train_tqdm(self) -> Tqdm:
        """Make the bar of a block; tqdm itself draws it at most ten times a second."""
        return Tqdm(
            total=self._limit(),
            initial=self._done,
            disable=self.is_disabled or not self.live or self._block is None,
            leave=True,
            dynamic_ncols=True,
            file=sys.stdout,
            bar_format=self.BAR_FORMAT,
        )

    def on_train_start(self, *_: Any) -> None:
        """Wait for the first round, which says what block it is in."""
        self.train_progress_bar = Tqdm(disable=True)

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Leave the bar alone: blocks are shown, not epochs."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the bar alone: blocks are shown, not epochs."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show the round."""
        rounds = rounds_of(pl_module)
        if rounds.block != self._block:
            self._end_block()
            self._block, self._before = rounds.block, rounds.round - 1
        self._done = rounds.round - self._before
        for key in ("fed/loss", self.metric):
            if key is not None and key in rounds.journal.scalars:
                self._shown[key.rsplit("/", 1)[-1]] = f"{rounds.journal.scalars[key]:.4f}"
        if self.is_disabled:
            return
        if self.live:
            self._draw()
        else:
            self._drawn = False
            if self._done % self.every == 0:
                self._write()

    def on_train_end(self, *_: Any) -> None:
        """Show the last round."""
        self._end_block()

    def on_exception(self, *_: Any) -> None:
        """Show the last round."""
        self._end_block()

    def state_dict(self) -> dict[str, Any]:
        """Where in a block the run is, for a resumed run."""
        return {"block": self._block, "before": self._before, "done": self._done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self._block = state_dict["block"]
        self._before = state_dict["before"]
        self._done = state_dict["done"]

    def _limit(self) -> int:
        if isinstance(self.limits, int):
            return self.limits
        return self.limits[min(self._block or 0, len(self.limits) - 1)]

    def _title(self) -> str:
        return f"Block {self._block} round {self._done}/{self._limit()}"

    def _draw(self) -> None:
        if self.train_progress_bar.disable:
            self.train_progress_bar = self.init_train_tqdm()
        bar = self.train_progress_bar
        bar.set_description_str(self._title(), refresh=False)
        bar.set_postfix(self._shown, refresh=False)
        bar.update(self._done - bar.n)

    def _write(self) -> None:
        numbers = " ".join(f"{name}={value}" for name, value in self._shown.items())
        line = f"{self._title()} {numbers}".rstrip()
        Console(soft_wrap=True, highlight=False, markup=False).print(line)
        self._drawn = True

    def _end_block(self) -> None:
        """Leave the last round of the block in view; the next one gets a bar of its own."""
        if not self._drawn:
            self._write()
        if self._train_progress_bar is not None:
            self.train_progress_bar.refresh()
            self.train_progress_bar.close()
