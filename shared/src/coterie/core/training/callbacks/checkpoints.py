"""Checkpoints of a federation, whichever callback asks for them; they survive a kill."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.plugins.io import CheckpointIO

from coterie.core.errors import UserError
from coterie.core.files import replacing
from coterie.core.metrics.monitor import Monitor
from coterie.core.run.checkpoint import BEST, LAST, read_checkpoint
from coterie.core.tensors.saved import clear, inline, refer, save

_PLAIN = (str, bytes, bool, int, float, complex, torch.Tensor, torch.dtype, torch.device)


class RunCheckpointIO(CheckpointIO):
    """Write a checkpoint in one step with a digest, and read it if every bit is as written.

    A file holds all there is, private state of simulated clients included. With
    ``storage_options={"entries": folder}`` append-only parts are files of that folder, each
    written once, which several checkpoints share.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write it.

        Raises:
            UserError: it should be written to no local file, or a callback keeps what a file
                cannot hold.
            OSError: the disk is full, or the folder cannot be written.
        """
        if "://" in str(path):
            raise UserError(f"a checkpoint is a local file, not {path}: name a folder of this disk")
        for name, state in checkpoint.get("callbacks", {}).items():
            if found := next(_foreign(state), None):
                raise UserError(
                    f"the callback {name.split('{')[0]} keeps a {found}, which no checkpoint can "
                    "hold: give tensors and plain values in its state_dict"
                )
        federation = checkpoint["federation"]
        entries = (storage_options or {}).get("entries")
        kept = inline(federation) if entries is None else refer(federation, entries)
        save(checkpoint | {"federation": kept}, Path(path))

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Read it, onto the CPU.

        Raises:
            UserError: it is missing, damaged or no checkpoint of a federation.
        """
        found = read_checkpoint(Path(path))
        if "loops" not in found:
            raise UserError(
                f"{path} is of an older version, which can be measured but not trained on: start a "
                "new run with another --run.name"
            )
        return found

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove it."""
        Path(path).unlink(missing_ok=True)


def _foreign(state: Any) -> Iterator[str]:
    """Name types that ``torch.load(weights_only=True)`` would not read."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _foreign(key)
            yield from _foreign(value)
    elif type(state) in (list, tuple):
        for value in state:
            yield from _foreign(value)
    elif state is not None and not isinstance(state, _PLAIN):
        yield type(state).__name__


# Checkpoints that survive a kill at any moment, and say when they were damaged since.


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
            run.exchange.keep_best()
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
