"""Checkpoints that survive a kill at any moment, and say when they were damaged since."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.callbacks.contract import RoundCallback, Rounds, states
from coterie.core.errors import UserError
from coterie.core.files import replacing
from coterie.core.metrics.monitor import Monitor
from coterie.core.tensors.entries import clear, refer, resolve
from coterie.core.tensors.saved import load, save

LAST, BEST = "last.ckpt", "best.ckpt"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run: ``federation``, and the states of ``callbacks``.

    Raises:
        UserError: it, or an append-only entry that it refers to, cannot be read or is damaged; or
            it is no checkpoint.
    """
    found = load(path)
    if not isinstance(found, dict) or "federation" not in found:
        raise UserError(f"{path} is no checkpoint of a run: put back a copy of it")
    return found | {"federation": resolve(found["federation"], path.parent)}


class Checkpoints(RoundCallback):
    """Keep the last round, and the best round of the newest block.

    Args:
        folder: holds ``last.ckpt`` and ``best.ckpt``, and entries of append-only parts in files of
            their own, which both share.
        every: rounds between two checkpoints; the end of a block is always kept.
        monitor: what the best round is chosen by; None keeps no best one.
        beside: the other callbacks, whose states are kept too.

    Attributes:
        best: block and score of the best round so far.
        more: gives what else is kept, such as the states of Lightning's callbacks.
    """

    kept = ("best",)

    def __init__(
        self,
        folder: Path,
        every: int,
        monitor: Monitor | None,
        beside: Sequence[RoundCallback] = (),
    ) -> None:
        self.folder, self.every, self.monitor, self.beside = folder, every, monitor, beside
        self.best = (-1, math.nan)  # block, score
        self.more: Callable[[], dict[str, Any]] = dict

    def start(self, run: Rounds) -> None:
        """Clear away what a killed process left."""
        self._clear()

    def end(self, run: Rounds) -> None:
        """Clear away what an earlier checkpoint referred to."""
        self._clear()

    def write(self, run: Rounds) -> None:
        """Save after a round."""
        better = self._is_better(run.block, run.journal.scalars)
        due = run.round % self.every == 0 or not run.block_open
        if not due and not better:
            return
        others = states([*self.beside, self])
        federation = refer(run.to_plain(), self.folder)
        save({"federation": federation, "callbacks": others, **self.more()}, self.folder / LAST)
        if better:
            with replacing(self.folder / BEST) as partial:
                shutil.copyfile(self.folder / LAST, partial)

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
