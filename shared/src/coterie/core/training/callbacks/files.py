"""Files beside the rounds: transcript.jsonl, and the curves of a run as a picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning

from coterie.core.errors import UserError
from coterie.core.federation.ledger import Transcript
from coterie.core.files import writing
from coterie.core.metrics.monitor import Monitor
from coterie.core.registry.papers import Paper
from coterie.core.run.dashboard import render


class Curves(lightning.Callback):
    """Draw ``curves.png`` and ``curves.svg`` by `coterie.core.run.dashboard.render`.

    Args:
        folder: of the run.
        paper: whose panels are drawn beside the core's.
        monitor: what the best round is chosen by.
        title: of the figure.
    """

    def __init__(self, folder: Path, paper: Paper, monitor: Monitor | None, title: str) -> None:
        self.arguments = folder, paper, monitor, title

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw."""
        render(*self.arguments, pl_module.run.results)


# transcript.jsonl: what crossed the boundary, line by line, cut back when a run is resumed.

_THEN = "then go on by --resume"


class TranscriptFile(lightning.Callback):
    """Append every crossing to ``transcript.jsonl`` once its ask is complete.

    The file equals the ledger. A checkpoint holds its length, so that lines of rounds that are not
    in the checkpoint are cut when a run is resumed: the file is that of an uninterrupted run.

    Attributes:
        size: bytes so far; None where a run has none.

    Raises:
        UserError: the file cannot be written, or is not that of the run that is resumed.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "transcript.jsonl"
        self.size: int | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Cut what came after the restored round, all for a new run; then listen to the ledger."""
        run = pl_module.run
        size = self.size if run.round else 0
        with writing(self.path, _THEN):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                there = file.tell()
                if size is None or there < size:
                    raise UserError(self._missing(size, there))
                file.truncate(size)
        self.size = size
        run.ledger.transcript = Transcript(self._append, lambda: self.size or 0, self._cut)

    def on_train_epoch_end(self, *_: Any) -> None:
        """Hand the round's lines to the disk, before a checkpoint counts on them."""
        with writing(self.path, _THEN), self.path.open("ab") as file:
            os.fsync(file.fileno())

    def state_dict(self) -> dict[str, Any]:
        """The size."""
        return {"size": self.size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self.size = state_dict["size"]

    def _append(self, lines: str) -> None:
        assert self.size is not None
        content = lines.encode()
        # Opened for each ask: a run may be asked for more after its last round.
        with writing(self.path, _THEN), self.path.open("ab") as file:
            file.write(content)
        self.size += len(content)

    def _cut(self, size: int) -> None:
        """Forget the lines of a round that is tried again."""
        with writing(self.path, _THEN), self.path.open("ab") as file:
            file.truncate(size)
        self.size = size

    def _missing(self, size: int | None, there: int) -> str:
        if size is None:
            return (
                f"no transcript of the rounds so far for {self.path}: leave logger.transcript out, "
                "or start a new run with another --run.name"
            )
        return (
            f"{self.path} has {there} bytes of {size}: put back a copy of it, or start a new run "
            "with another --run.name"
        )
