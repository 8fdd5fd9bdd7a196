"""One W&B run, fed from a thread of its own, so that it neither stops nor slows the training."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.callbacks.keys import CLIENT_TABLE, KEYS, NAMESPACES, X_AXIS

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0  # what a killed process can lose of the offline file; W&B's default is 15


class WandbRun:
    """A W&B run whose calls return at once and never raise.

    Starting W&B takes about a second, and handing a round to its process half a millisecond on an
    idle machine but several on a busy one; both happen in the background, in order. Whatever W&B
    raises is caught and warned of once, and the run ignores all further calls.

    Args:
        folder: the run folder; W&B writes into its subfolder ``wandb``.
        online: send to the server at once.
        namespaces: prefixes of keys besides the common ones.
        summaries: key -> "max" or "min", besides those of documented keys.
        columns: of the client table.
        init: arguments of ``wandb.init``: id, project, name, group, and so on.
    """

    def __init__(
        self,
        folder: Path,
        online: bool,
        namespaces: Sequence[str],
        summaries: Mapping[str, str],
        columns: Sequence[str],
        init: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self.online = online
        self._namespaces = (*NAMESPACES, *namespaces)
        self._summaries = summaries
        self._columns = columns
        self._wandb: Any = None
        self._run: Any = None
        self._table: Any = None
        self._failed = False
        self._environment = self._set_environment()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wandb")
        self._later(lambda: self._start(init))

    def log(
        self,
        step: int,
        scalars: dict[str, Any],
        histograms: Mapping[str, tuple[np.ndarray, np.ndarray]],
        rows: Sequence[Sequence[Any]],
    ) -> None:
        """Log a round: scalars, histograms as counts and edges, rows added to the client table."""
        self._later(lambda: self._log(step, scalars, histograms, rows))

    def finish(self, code: int) -> None:
        """Wait until everything is written; ``code`` 0 says that the training succeeded."""
        self._later(lambda: self._run.finish(exit_code=code))
        self._thread.shutdown(wait=True)
        for name in self._environment:
            os.environ.pop(name, None)

    def fail(self, error: Exception) -> None:
        """Ignore all further calls, and say why, once."""
        if not self._failed:
            self._failed = True
            missing = isinstance(error, ModuleNotFoundError) and error.name == "wandb"
            reason = "wandb is not installed (pip install wandb)" if missing else _line_of(error)
            logger.warning("W&B logging is off, metrics.csv goes on: %s", reason)

    def _later(self, action: Callable[[], None]) -> None:
        if not self._failed:
            self._thread.submit(self._guarded, action)

    def _guarded(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        # W&B may raise anything (its process dies, the disk is full, an API changes), and a
        # training run must not end for the sake of its log.
        except Exception as error:
            self.fail(error)

    def _set_environment(self) -> list[str]:
        """Set what is settable by environment only and not the user's choice; return the names."""
        # Parts of the client table wait for a sync in the one, logs go to the other; by default
        # both are in the home folder, which may not be writable.
        wanted = dict.fromkeys(("WANDB_DATA_DIR", "WANDB_CACHE_DIR"), str(self.folder / "wandb"))
        if not self.online:
            # W&B's own error reporting looks for its server even when the run is offline.
            wanted["WANDB_ERROR_REPORTING"] = "false"
        new = [name for name in wanted if name not in os.environ]
        os.environ.update({name: wanted[name] for name in new})
        return new

    def _start(self, init: Mapping[str, Any]) -> None:
        import wandb  # it may be missing, and takes half a second

        self._wandb = wandb
        settings = wandb.Settings(
            mode="online" if self.online else "offline",
            silent=True,
            console="off",  # warnings name refused clients
            save_code=False,
            init_timeout=30,
            x_transaction_log_flush_interval=FLUSH_SECONDS,
        )
        self._run = wandb.init(
            **init, dir=str(self.folder), resume="allow", reinit="create_new", settings=settings
        )
        self._run.define_metric(X_AXIS)
        for namespace in self._namespaces:
            self._run.define_metric(f"{namespace}/*", step_metric=X_AXIS)
        summaries: dict[str, str | None] = {k.name: k.summary for k in KEYS if "*" not in k.name}
        summaries.pop(X_AXIS)
        for name, summary in (summaries | dict(self._summaries)).items():
            self._run.define_metric(name, step_metric=X_AXIS, summary=summary)
        self._table = wandb.Table(columns=list(self._columns), log_mode="INCREMENTAL")

    def _log(
        self,
        step: int,
        scalars: dict[str, Any],
        histograms: Mapping[str, tuple[np.ndarray, np.ndarray]],
        rows: Sequence[Sequence[Any]],
    ) -> None:
        line = {**scalars, X_AXIS: step}
        for name, counted in histograms.items():
            line[f"clients/{name}"] = self._wandb.Histogram(np_histogram=counted)
        for row in rows:
            self._table.add_data(*row)
        if rows:
            line[CLIENT_TABLE] = self._table
        # The step is the round, so that both parts of a resumed run lie on one axis; a row with a
        # step of its own is held back until the next one unless it is committed.
        self._run.log(line, step=step, commit=True)


def _line_of(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
