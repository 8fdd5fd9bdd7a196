"""One W&B run in a process of its own, so that it can neither stop nor slow the training."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from coterie.core.callbacks.wandb_process import OFFLINE, WRITTEN

logger = logging.getLogger(__name__)

PATIENCE = 60.0  # seconds that a finished training waits for the files of an offline run
UPLOADING = 600.0  # and for the upload of an online one; what is not up by then is in the files


class WandbRun:
    """A W&B run whose calls return at once and never raise.

    Starting W&B keeps Python's interpreter busy for one to two seconds, which no thread can hide;
    `coterie.core.callbacks.wandb_process` does it in another process, which gets the rounds through
    a pipe. When the training is killed, it sees the pipe end and closes its files. Whatever goes
    wrong there is warned of once, and the run ignores all further calls.

    Args:
        folder: the run folder; W&B writes into its subfolder ``wandb``.
        online: send to the server at once.
        about: plain values: ``namespaces``, prefixes of keys besides the common ones;
            ``summaries``, key -> "max", "min" or None for its last value; ``columns`` of the client
            table; ``init``, arguments of ``wandb.init``: id, project, name, group, and so on.
    """

    def __init__(self, folder: Path, online: bool, **about: Any) -> None:
        folder = folder.resolve()
        self.folder = folder / "wandb"
        self.online = online
        self._failed = False
        self._process: subprocess.Popen[bytes] | None = None
        # A full pipe blocks the writer: while W&B starts, this thread waits, not the training.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wandb")
        start = {"folder": str(folder), "online": online, "pid": os.getpid(), **about}
        self._guarded(self._spawn)
        self._later(lambda: self._send(start))

    def log(self, step: int, **round_: Any) -> None:
        """Log a round: scalars, histograms as counts and edges, rows added to the client table."""
        self._later(lambda: self._send({"step": step, **round_}))

    def finish(self, code: int) -> None:
        """Wait until everything is written; ``code`` 0 says that the training succeeded."""
        ended = self._thread.submit(self._guarded, lambda: self._end(code))
        patience = UPLOADING if self.online else PATIENCE
        try:
            ended.result(patience)
        except TimeoutError:
            rest = f"; say: wandb sync {self.folder}/run-*" if self.online else ""
            self.fail(f"its process did not finish within {patience:.0f} s{rest}")
            assert self._process is not None
            self._process.kill()
        if self._process is not None:
            # W&B's own clean-up takes another half second, which nobody need wait for.
            self._thread.submit(self._process.communicate)
        self._thread.shutdown(wait=False)

    def fail(self, reason: str) -> None:
        """Ignore all further calls, and say why, once."""
        if not self._failed:
            self._failed = True
            logger.warning("W&B logging is off, metrics.csv goes on: %s", reason)

    def _later(self, action: Callable[[], None]) -> None:
        if not self._failed:
            self._thread.submit(self._guarded, action)

    def _guarded(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except BrokenPipeError:
            self.fail(self._last_words())
        # Nothing that a log meets (a full disk, a value that is no number, no memory for another
        # process) may end the training.
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")

    def _spawn(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Parts of the client table wait for a sync in the one, logs go to the other; by default
        # both are in the home folder, which may not be writable.
        own = dict.fromkeys(("WANDB_DATA_DIR", "WANDB_CACHE_DIR"), str(self.folder))
        if not self.online:
            # W&B's own error reporting looks for its server even when the run is offline.
            own["WANDB_ERROR_REPORTING"] = "false"
        with (self.folder / "process.log").open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "coterie.core.callbacks.wandb_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=own | dict(os.environ),
                start_new_session=True,  # Ctrl-C ends the training, which then ends this
            )

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _end(self, code: int) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._send({"finish": code})
        line = self._process.stdout.readline().decode("utf-8", "replace").rstrip("\n")
        if line.startswith(OFFLINE):
            self._say_offline(line.removeprefix(OFFLINE))
            line = self._process.stdout.readline().decode("utf-8", "replace").rstrip("\n")
        if line != WRITTEN:
            raise BrokenPipeError

    def _say_offline(self, reason: str) -> None:
        runs = shlex.quote(str(self.folder)) + "/offline-run-*"
        logger.warning(
            "W&B is not online (%s), so the run is kept offline; to upload it, say: wandb login, "
            "then wandb sync %s",
            reason,
            runs,
        )

    def _last_words(self) -> str:
        assert self._process is not None
        self._process.wait(PATIENCE)
        lines = (self.folder / "process.log").read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "its process ended")
