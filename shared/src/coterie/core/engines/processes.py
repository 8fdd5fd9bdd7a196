"""Workers that are processes of this machine."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.core.engines.envelope import read_frame, write_frame
from coterie.core.engines.folder import check_one_federation
from coterie.core.engines.nodes import START
from coterie.core.engines.workers import Worker, Workers
from coterie.core.wire.codec import ProtocolError

logger = logging.getLogger(__name__)
COMMAND = (sys.executable, "-m", "coterie.core.engines.worker")


class WorkerProcesses(Workers):
    """Worker processes of this machine.

    Args:
        folders: made by `coterie.core.engines.folder.ClientFolder.create`; each client in one.
        run: names the run; private state is of one run.
        processes: how many there are, by default one for each folder.
        environment: of the processes; None for this one's.
        start: seconds that a process has to come up.
        options: of `coterie.core.engines.nodes.Nodes`.

    Raises:
        UserError: the folders are of several federations.

    Example:
        with WorkerProcesses([Path("north"), Path("south")], run="trial") as workers:
            run = FederatedRun(federation_of(card, Path("server"), workers))
            run.advance()
    """

    def __init__(
        self,
        folders: Sequence[Path],
        run: str,
        *,
        processes: int | None = None,
        environment: Mapping[str, str] | None = None,
        start: float = START,
        **options: Any,
    ) -> None:
        check_one_federation(folders)

        def make(own: Sequence[Path]) -> WorkerProcess:
            return WorkerProcess(own, start, environment)

        super().__init__(folders, run, make, workers=processes, start=start, **options)


class WorkerProcess(Worker["subprocess.Popen[bytes]"]):
    """One process.

    Args:
        folders: of its clients.
        start: seconds that it has to come up.
        environment: of the process; None for this one's.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        start: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folders, start)
        self._environment = environment

    def spawn(self) -> subprocess.Popen[bytes] | None:
        """Start a process."""
        named = [word for folder in self.folders for word in ("--folder", str(folder))]
        try:
            # A session of its own: Ctrl-C is for the server, which ends its processes.
            return subprocess.Popen(
                [*COMMAND, *named],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:  # no memory, or too many processes
            logger.warning("cannot start a process for clients: %s", error.strerror)
            return None

    def comes_up(self, handle: subprocess.Popen[bytes]) -> bool:
        """Wait until it says that it is ready."""
        limit = threading.Timer(self.start, handle.kill)
        limit.daemon = True
        limit.start()
        ready = None
        with suppress(OSError, ValueError, ProtocolError):
            ready = read_frame(handle.stdout)  # type: ignore[arg-type]
        limit.cancel()
        return ready == b""

    def ended(self, handle: subprocess.Popen[bytes]) -> bool:
        """Whether it has an exit status."""
        return handle.poll() is not None

    def talk(self, handle: subprocess.Popen[bytes], name: str, parcel: bytes) -> bytes | None:
        """Write name and parcel, read the reply."""
        with suppress(OSError, ValueError, ProtocolError):
            write_frame(handle.stdin, name.encode())  # type: ignore[arg-type]
            write_frame(handle.stdin, parcel)  # type: ignore[arg-type]
            return read_frame(handle.stdout)  # type: ignore[arg-type]
        return None

    def end(self, handle: subprocess.Popen[bytes]) -> None:
        """Kill it."""
        handle.kill()
        handle.wait()
        for stream in (handle.stdin, handle.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()
