"""Nodes that are processes of this machine, each with the folder of some clients."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.core.engines.envelope import read_frame, write_frame
from coterie.core.engines.folder import check_one_federation
from coterie.core.engines.nodes import START, Nodes
from coterie.core.wire.codec import ProtocolError

COMMAND = (sys.executable, "-m", "coterie.core.engines.worker")


class WorkerProcesses(Nodes):
    """Worker processes, each with the folder of some clients and nothing else.

    A process that dies, answers too late or nonsense has its clients left out of the ask; it is
    started again and goes on from the state that it has kept.

    Args:
        folders: of the processes, made by `coterie.core.engines.folder.ClientFolder.create`; each
            client in one of them.
        run: names the run; private state is of one run.
        environment: of the processes; None for this one's.
        start: seconds that a process has to come up.
        options: of `coterie.core.engines.nodes.Nodes`.

    Raises:
        UserError: the folders are of several federations.

    Example:
        with WorkerProcesses([Path("north"), Path("south")], run="trial") as workers:
            run = FederatedRun(replace(federation, exchange=workers))
            run.advance()
    """

    def __init__(
        self,
        folders: Sequence[Path],
        run: str,
        *,
        environment: Mapping[str, str] | None = None,
        start: float = START,
        **options: Any,
    ) -> None:
        check_one_federation(folders)
        processes = [WorkerProcess(folder, start, environment) for folder in folders]
        super().__init__(processes, run, start=start, **options)


class WorkerProcess:
    """One process, started when it is needed.

    Args:
        folder: of its clients.
        start: seconds that it has to come up.
        environment: of the process; None for this one's.
    """

    def __init__(
        self, folder: Path, start: float, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.name = folder, folder.name
        self._start, self._environment = start, environment
        self._change = threading.Condition()  # of all that follows
        self._process: subprocess.Popen[bytes] | None = None
        self._is_up = self._is_asked = self._closed = False
        self._asks = self._given_up = 0  # number of the newest ask, and of the newest in vain

    def ask(self, parcel: bytes, seconds: float | None) -> bytes | None:
        """Send a parcel and wait for its reply; None where the process is gone, or given up."""
        process = self._taken()
        if process is None:
            return None
        reply = None
        with suppress(OSError, ValueError, ProtocolError):
            write_frame(process.stdin, parcel)  # type: ignore[arg-type]
            reply = read_frame(process.stdout)  # type: ignore[arg-type]
        with self._change:
            self._is_asked = False
            if reply is None:
                self._end(process)
        return reply

    def give_up(self) -> None:
        """End the process if it was asked; one that is coming up goes on doing so."""
        with self._change:
            self._given_up = self._asks
            if self._is_asked:
                self._end(self._process)
            self._change.notify_all()

    def close(self) -> None:
        """End the process for good; what it has not kept by now, it never did."""
        with self._change:
            self._closed, self._given_up = True, self._asks
            self._end(self._process)

    def _taken(self) -> subprocess.Popen[bytes] | None:
        """The process, once it is up, for an ask that nobody has given up by then."""
        with self._change:
            self._asks += 1
            number = self._asks
            if self._process is None or self._process.poll() is not None:
                self._spawn()
            self._change.wait_for(
                lambda: self._is_up or self._process is None or self._given_up >= number
            )
            if not self._is_up or self._given_up >= number:
                return None
            self._is_asked = True
            return self._process

    def _spawn(self) -> None:
        self._end(self._process)
        if self._closed:
            return
        # A session of its own: Ctrl-C is for the server, which ends its processes.
        self._process = subprocess.Popen(
            [*COMMAND, "--folder", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        threading.Thread(target=self._come_up, args=(self._process,), daemon=True).start()

    def _come_up(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a process says that it is ready."""
        limit = threading.Timer(self._start, process.kill)
        limit.start()
        ready = None
        with suppress(OSError, ValueError, ProtocolError):
            ready = read_frame(process.stdout)  # type: ignore[arg-type]
        limit.cancel()
        with self._change:
            if self._process is process:
                self._is_up = ready == b""
                if not self._is_up:
                    self._end(process)
            self._change.notify_all()

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is None or process is not self._process:
            return
        self._process, self._is_up = None, False
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()
        self._change.notify_all()
