"""Checkpoints that survive a kill at any moment, and say when they were damaged since."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch import callbacks as theirs

from coterie.core.files import replacing
from coterie.core.metrics.monitor import Monitor
from coterie.core.run.checkpoint import BEST, LAST
from coterie.core.tensors.entries import clear


class Checkpoints(theirs.Checkpoint):
    """Keep the last round, and the best round of the newest block.

    The states of all callbacks and loggers are kept too, so it stands last among them.

    Args:
        folder: holds ``last.ckpt`` and ``best.ckpt``, and entries of append-only parts in files of
            their own, which both share.
        every: rounds between two checkpoints; the end of a block is always kept.
        monitor: what the best round is chosen by; None keeps no best one.

    Attributes:
        best: block and score of the best round so far.

    Example:
        trainer = lightning.Trainer(max_epochs=-1, callbacks=[Checkpoints(Path("mine"))])
        trainer.fit(module, ckpt_path="mine/last.ckpt")  # goes on
    """

    def __init__(self, folder: Path, every: int = 1, monitor: Monitor | None = None) -> None:
        self.folder, self.every, self.monitor = folder, every, monitor
        self.best = (-1, math.nan)  # block, score

    @property
    def best_model_path(self) -> str:
        """File of the best round, for ``trainer.test(ckpt_path="best")``; empty before one."""
        return str(self.folder / BEST) if (self.folder / BEST).is_file() else ""

    def on_train_start(self, *_: Any) -> None:
        """Clear away what a killed process left."""
        self._clear()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Save after a round."""
        run = pl_module.run
        better = self._is_better(run.block, run.journal.scalars)
        due = run.round % self.every == 0 or not run.block_open
        if not due and not better:
            return
        trainer.save_checkpoint(self.folder / LAST, storage_options={"entries": self.folder})
        if better:
            with replacing(self.folder / BEST) as partial:
                shutil.copyfile(self.folder / LAST, partial)

    def on_train_end(self, *_: Any) -> None:
        """Clear away what an earlier checkpoint referred to."""
        self._clear()

    def state_dict(self) -> dict[str, Any]:
        """The best round."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        block, score = state_dict["best"]
        self.best = (block, score)

    def _clear(self) -> None:
        clear(self.folder, (self.folder / LAST, self.folder / BEST))

    def _is_better(self, block: int, measured: Mapping[str, float]) -> bool:
        """Compare a round with the best one of its block."""
        if self.monitor is None:
            return False
        # A new block starts afresh: its validation data are others.
        best = self.best[1] if self.best[0] == block else math.nan
        score = measured.get(self.monitor.key, math.nan)
        better = self.monitor.better(score, than=best)
        if better:
            self.best = (block, score)
        return better
