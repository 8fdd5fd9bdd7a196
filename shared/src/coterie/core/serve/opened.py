"""The run that is served: computed with in one thread, and opened anew beside it when newer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from coterie.core.errors import UserError
from coterie.core.run.checkpoint import LAST
from coterie.core.run.driver import computing_as
from coterie.core.run.recommender import Recommender
from coterie.core.run.runfolder import RunFolder
from coterie.core.run.serving import open_recommender
from coterie.core.serve.metrics import Metrics

log = logging.getLogger("coterie.serve")
T = TypeVar("T")
Stamp = tuple[int, int, int] | None


@dataclass(frozen=True)
class State:
    """A state of a run, never changed.

    Attributes:
        recommender: makes lists of it.
        stamp: of the checkpoint that it was read from.
    """

    recommender: Recommender
    stamp: Stamp

    @property
    def round(self) -> int:
        """Rounds that the run had done."""
        return int(self.recommender.module.round)


class OpenedRun:
    """A run that is served, always by one whole state.

    One thread computes, with the threads and kernels of the run: both belong to the process. A
    newer state is opened in another thread and takes the place of the old one between two lists.

    Args:
        folder: of the run.
        metrics: counts of the server.

    Raises:
        UserError: as `open_recommender`.
    """

    def __init__(self, folder: Path, metrics: Metrics) -> None:
        self.folder, self.metrics = folder, metrics
        self._refused: Stamp = (0, 0, 0)  # of what could not be opened
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self.state = self._open()
        self._computing = ExitStack()
        self._worker = ThreadPoolExecutor(1, "coterie-compute")
        engine = RunFolder.open(folder).settings.engine
        self._worker.submit(self._computing.enter_context, computing_as(engine)).result()

    def submit(self, work: Callable[[State], T]) -> Future[T]:
        """Compute with the state that the run has when its turn comes."""
        return self._worker.submit(lambda: work(self.state))

    def watch(self, seconds: float) -> None:
        """Look for a newer state again and again, until the run is closed."""

        def look() -> None:
            while not self._closing.wait(seconds):
                self.refresh()

        self._watcher = threading.Thread(target=look, name="coterie-watch", daemon=True)
        self._watcher.start()

    def refresh(self) -> bool:
        """Open the newest state if there is a newer one; say whether there was.

        What cannot be opened is said once, in one line, and the old state goes on.
        """
        now = self._stamp()
        if now in (self.state.stamp, self._refused):
            return False
        try:
            newer = self._open()
        except Exception as error:  # whatever is wrong with a file, the old state is right
            self._refused = now
            self.metrics.reloads.labels("failed").inc()
            why = str(error) if isinstance(error, UserError) else type(error).__name__
            log.warning(
                "the newer checkpoint cannot be opened, round %d is served on: %s",
                self.state.round,
                " ".join(why.split()),
            )
            return False
        self.state = newer
        self.metrics.reloads.labels("opened").inc()
        log.info("round %d is served from now on", newer.round)
        return True

    def close(self) -> None:
        """End the threads, and give the process its own settings back."""
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        self._worker.submit(self._computing.close).result()
        self._worker.shutdown()

    def _open(self) -> State:
        stamp = self._stamp()  # before: what is written meanwhile is newer
        recommender = open_recommender(self.folder)
        _ = recommender.had, recommender.numbers  # not at the first request
        state = State(recommender, stamp)
        self.metrics.round.set(state.round)
        return state

    def _stamp(self) -> Stamp:
        try:
            found = (self.folder / "checkpoints" / LAST).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
