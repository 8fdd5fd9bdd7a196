"""Checkpoints that survive a kill at any moment: written beside, then renamed."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from coterie.core.errors import UserError
from coterie.core.metrics.monitor import Monitor

LAST, BEST = "last.ckpt", "best.ckpt"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run.

    Raises:
        UserError: it is damaged, or no checkpoint.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what the damaged bytes happen to trigger
        raise _damaged(path, type(error).__name__) from error
    if not isinstance(found, dict) or "federation" not in found:
        raise _damaged(path, "it holds no federation")
    return found


def _damaged(path: Path, how: str) -> UserError:
    return UserError(
        f"checkpoint {path} is damaged ({how}): put back a copy of it, or train anew under another "
        "--run.name"
    )


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint to a temporary name, flush it to the disk, then rename it."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Save; a process killed in between leaves the previous checkpoint whole."""
        partial = Path(f"{path}.partial")
        try:
            super().save_checkpoint(checkpoint, partial, storage_options)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:  # a full disk, an interruption
            partial.unlink(missing_ok=True)
            raise

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read by `read_checkpoint`, always onto the CPU and tensors and plain values only."""
        return read_checkpoint(Path(path))


class Checkpoints(lightning.Callback):
    """Keep the last round, and the best round of the newest block.

    Args:
        folder: holds ``last.ckpt`` and ``best.ckpt``.
        every: rounds between two checkpoints; the end of a block is always kept.
        monitor: what the best round is chosen by; None keeps no best one.
    """

    def __init__(self, folder: Path, every: int, monitor: Monitor | None) -> None:
        self.folder, self.every, self.monitor = folder, every, monitor
        self.best = (-1, math.nan)  # block, score

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know: the best value so far."""
        return {"best": list(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        block, value = state_dict["best"]
        self.best = (block, value)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *_: Any
    ) -> None:
        """Save after a round."""
        module: Any = pl_module
        better = self._is_better(module.block, module.journal.scalars)
        due = module.round % self.every == 0 or not module.block_open
        if not due and not better:
            return
        trainer.save_checkpoint(self.folder / LAST)
        if better:
            partial = self.folder / f"{BEST}.partial"
            shutil.copyfile(self.folder / LAST, partial)
            os.replace(partial, self.folder / BEST)

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
