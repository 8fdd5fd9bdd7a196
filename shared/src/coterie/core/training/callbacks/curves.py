"""The curves of a run as a picture, when its rounds are done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning

from coterie.core.metrics.monitor import Monitor
from coterie.core.registry.papers import Paper
from coterie.core.run.dashboard import render


class Curves(lightning.Callback):
    """Draw ``curves.png`` by `coterie.core.run.dashboard.render`.

    Args:
        folder: of the run.
        paper: whose panels are drawn beside the core's.
        monitor: what the best round is chosen by.
        title: of the figure.
    """

    def __init__(self, folder: Path, paper: Paper, monitor: Monitor | None, title: str) -> None:
        self.arguments = folder, paper, monitor, title

    def on_train_end(self, *_: Any) -> None:
        """Draw."""
        render(*self.arguments)
