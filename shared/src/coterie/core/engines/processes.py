"""Nodes that are processes of this machine, each with the folder of some clients."""

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
from coterie.core.engines.folder import check_one_federation, keep_best
from coterie.core.engines.nodes import START, Nodes
from coterie.core.wire.codec import ProtocolError

logger = logging.getLogger(__name__)
COMMAND = (sys.executable, "-m", "coterie.core.engines.worker")


class WorkerProcesses(Nodes):
    """Worker processes, with the folders of some clients each and nothing else.

    A process that dies, answers too late or nonsense has its clients left out of the ask; it is
    started again and goes on from the state that it has kept.

    Args:
        folders: made by `coterie.core.engines.folder.ClientFolder.create`; each client in one.
        run: names the run; private state is of one run.
        processes: how many there are, by default one for each folder; each serves its folders one
            after the other.
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
        count = max(min(processes or len(folders), len(folders)), 1)
        shares = [folders[number::count] for number in range(count)]
        each = [WorkerProcess(share, start, environment) for share in shares]
        nodes = [FolderNode(folder, each[place % count]) for place, folder in enumerate(folders)]
        super().__init__(nodes, run, start=start, **options)
        self._folders = folders

    def keep_best(self) -> None:
        """Keep the private state that the server has heard of, beside the newest."""
        for member, folder in zip(self.members, self._folders, strict=True):
            keep_best(folder, member.heard)


class FolderNode:
    """The clients of one folder, served by a process that may serve others as well.

    Attributes:
        name: of the folder.
        process: that serves it.
        asks: how often it was asked so far.
        given_up: number of the newest ask that nobody waits for.
    """

    def __init__(self, folder: Path, process: WorkerProcess) -> None:
        self.name, self.process = folder.name, process
        self.asks = self.given_up = 0

    def ask(self, parcel: bytes, seconds: float | None) -> bytes | None:
        """Send a parcel and wait for its reply; None where the process is gone, or given up."""
        return self.process.ask(self, parcel)

    def give_up(self) -> None:
        """End the process if it is at it; one that is coming up goes on doing so."""
        self.process.give_up(self)

    def close(self) -> None:
        """End the process for good; what it has not kept by now, it never did."""
        self.process.close()


class WorkerProcess:
    """One process, started when it is needed.

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
        self.folders, self._start, self._environment = folders, start, environment
        self._change = threading.Condition()  # of all that follows, and of the nodes' numbers
        self._process: subprocess.Popen[bytes] | None = None
        self._is_up = self._closed = False
        self._busy: FolderNode | None = None

    def ask(self, node: FolderNode, parcel: bytes) -> bytes | None:
        """Send a parcel for one of its folders and wait for its reply; None where there is none."""
        process = self._taken(node)
        if process is None:
            return None
        reply = None
        with suppress(OSError, ValueError, ProtocolError):
            write_frame(process.stdin, node.name.encode())  # type: ignore[arg-type]
            write_frame(process.stdin, parcel)  # type: ignore[arg-type]
            reply = read_frame(process.stdout)  # type: ignore[arg-type]
        with self._change:
            self._busy = None
            if reply is None:
                self._end(process)
            self._change.notify_all()
        return reply

    def give_up(self, node: FolderNode) -> None:
        """Nobody waits for what a folder was asked."""
        with self._change:
            node.given_up = node.asks
            if self._busy is node:
                self._end(self._process)
            self._change.notify_all()

    def close(self) -> None:
        """End the process for good."""
        with self._change:
            self._closed = True
            self._end(self._process)
            self._change.notify_all()

    def _taken(self, node: FolderNode) -> subprocess.Popen[bytes] | None:
        """The process, once it is up and free, for an ask that nobody has given up by then."""
        with self._change:
            node.asks += 1
            number = node.asks
            for _ in range(2):  # it may end while it answers another folder
                if self._process is None or self._process.poll() is not None:
                    self._spawn()
                self._change.wait_for(
                    lambda: (
                        (self._is_up and self._busy is None)
                        or self._process is None
                        or node.given_up >= number
                    )
                )
                if node.given_up >= number or self._closed:
                    return None
                if self._process is not None:
                    self._busy = node
                    return self._process
            return None

    def _spawn(self) -> None:
        self._end(self._process)
        if self._closed:
            return
        named = [word for folder in self.folders for word in ("--folder", str(folder))]
        try:
            # A session of its own: Ctrl-C is for the server, which ends its processes.
            self._process = subprocess.Popen(
                [*COMMAND, *named],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:  # no memory, or too many processes
            logger.warning("cannot start a process for clients: %s", error.strerror)
            return
        threading.Thread(target=self._come_up, args=(self._process,), daemon=True).start()

    def _come_up(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a process says that it is ready."""
        limit = threading.Timer(self._start, process.kill)
        limit.daemon = True
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
