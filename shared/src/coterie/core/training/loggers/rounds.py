"""What a logger may know of rounds beside their numbers; metrics.csv, as a logger of Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from torch import Tensor

from coterie.core.run.driver import FederatedRun
from coterie.core.run.metrics_file import STREAM, MetricsFile

Measured = Mapping[str, tuple[Tensor, Tensor]]
"""Measurements of clients: name -> ids and values, both ``(R,)``."""


class RoundLogger(Logger):
    """A logger of Lightning that goes on with a resumed run, and may log what clients measured.

    Any other logger gets the numbers of each round alone. What it logs belongs to the round in
    which the run stands, whatever Lightning counts.

    Attributes:
        run: that is logged, once it has begun.
    """

    run: FederatedRun

    def begin(self, run: FederatedRun) -> None:
        """Start, or go on after the round in which the run stands."""
        self.run = run

    def log_clients(self, measured: Measured, step: int) -> None:
        """Log what each client measured in a round. Default: nothing."""

    def end_round(self) -> None:
        """Take note that nothing comes to the newest round any more. Default: nothing."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know: plain values. Default: nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave. Default: nothing."""


# metrics.csv, as a logger of Lightning.


class MetricsLogger(RoundLogger):
    """Write ``metrics.csv``: a line a round, whole at any moment, cut back when a run is resumed.

    Lightning's own `CSVLogger` deletes the file of a run that goes on, and rewrites all of it where
    a column is new. Settings are not written: ``config.yaml`` of the run folder has them.

    Args:
        folder: of the run.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = MetricsFile(folder)

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.file.path.parent.name

    @property
    def version(self) -> str:
        """None: a run folder has one."""
        return ""

    @property
    def save_dir(self) -> str:
        """Folder of the run folder."""
        return str(self.file.path.parent.parent)

    @property
    def log_dir(self) -> str:
        """The run folder."""
        return str(self.file.path.parent)

    def begin(self, run: FederatedRun) -> None:
        """Keep the lines up to the restored round, none for a new run."""
        super().begin(run)
        # What was noted for being the end, is not the end's once more rounds follow.
        self.file.begin(run.round, without=STREAM if run.reopened else None)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write numbers of a round; more numbers of it join its line."""
        self.file.write(self.run.round, {n: v for n, v in metrics.items() if n != "epoch"})

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: ``config.yaml`` has them."""

    def finalize(self, status: str) -> None:
        """Close the file."""
        self.file.close()
