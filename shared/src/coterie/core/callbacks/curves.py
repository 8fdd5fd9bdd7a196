"""``curves.png``, drawn when the rounds are done."""

from __future__ import annotations

from pathlib import Path

from coterie.core.callbacks.contract import RoundCallback, Rounds
from coterie.core.metrics.monitor import Monitor
from coterie.core.registry.importing import heavy
from coterie.core.registry.papers import Paper


class Curves(RoundCallback):
    """Draw ``metrics.csv`` as `coterie.core.callbacks.dashboard.render` does.

    It stands before `WandbLog`, whose process starts and writes meanwhile: what draws takes as long
    to import as that.

    Args:
        folder: the run folder.
        paper: whose panels are drawn beside the core's.
        monitor: what the best round is chosen by.
        title: of the figure.
    """

    def __init__(self, folder: Path, paper: Paper, monitor: Monitor | None, title: str) -> None:
        self.folder, self.paper, self.monitor, self.title = folder, paper, monitor, title

    def end(self, run: Rounds) -> None:
        """Draw."""
        heavy("matplotlib.figure")
        dashboard = heavy("coterie.core.callbacks.dashboard")
        dashboard.render(self.folder, self.paper, self.monitor, self.title)
