"""Nodes whose clients are served by workers, each with the folders of some clients."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from coterie.core.engines.folder import keep_best
from coterie.core.engines.nodes import START, Nodes

H = TypeVar("H")


class Workers(Nodes):
    """Workers with the folders of some clients each and nothing else.

    A worker that dies, answers too late or nonsense has its clients left out of the ask; it is
    started again and goes on from the state that it has kept.

    Attributes:
        workers: each with some of the folders.

    Args:
        folders: of clients, on a file system that this process shares with the workers.
        run: names the run; private state is of one run.
        make: gives the worker for some of the folders.
        workers: how many there are, by default one for each folder; each serves its folders one
            after the other.
        start: seconds that a worker has to come up.
        options: of `coterie.core.engines.nodes.Nodes`.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        run: str,
        make: Callable[[Sequence[Path]], Worker[Any]],
        *,
        workers: int | None = None,
        start: float = START,
        **options: Any,
    ) -> None:
        count = max(min(workers or len(folders), len(folders)), 1)
        self.workers = [make(folders[number::count]) for number in range(count)]
        self._nodes = [
            FolderNode(path, self.workers[place % count]) for place, path in enumerate(folders)
        ]
        super().__init__(self._nodes, run, start=start, **options)

    def keep_best(self) -> None:
        """Keep the private state that the server has heard of, beside the newest."""
        for member, node in zip(self.members, self._nodes, strict=True):
            keep_best(node.folder, member.heard)


class FolderNode:
    """The clients of one folder, served by a worker that may serve others as well.

    Attributes:
        name: of the folder.
        folder: of the clients.
        worker: that serves it.
        asks: how often it was asked so far.
        given_up: number of the newest ask that nobody waits for.
    """

    def __init__(self, folder: Path, worker: Worker[Any]) -> None:
        self.name, self.folder, self.worker = folder.name, folder, worker
        self.asks = self.given_up = 0

    def ask(self, parcel: bytes, seconds: float | None) -> bytes | None:
        """Send a parcel and wait for its reply; None where the worker is gone, or given up."""
        return self.worker.ask(self, parcel)

    def give_up(self) -> None:
        """End the worker if it is at it; one that is coming up goes on doing so."""
        self.worker.give_up(self)

    def close(self) -> None:
        """End the worker for good; what it has not kept by now, it never did."""
        self.worker.close()


class Worker(ABC, Generic[H]):
    """Serves the clients of some folders, one parcel at a time; started when it is needed.

    Where it runs is what a subclass knows: it starts something, waits until that is up, talks to
    it and ends it.

    Args:
        folders: of its clients.
        start: seconds that it has to come up.

    Attributes:
        tries: how often a parcel is sent, each time to what was started anew. A parcel that was
            answered before gets the same answer.
    """

    tries: ClassVar[int] = 1

    def __init__(self, folders: Sequence[Path], start: float) -> None:
        self.folders, self.start = folders, start
        self._change = threading.Condition()  # of all that follows, and of the nodes' numbers
        self._handle: H | None = None
        self._is_up = self._closed = False
        self._busy: FolderNode | None = None

    @abstractmethod
    def spawn(self) -> H | None:
        """Start it, and do not wait; None where that cannot be."""

    @abstractmethod
    def comes_up(self, handle: H) -> bool:
        """Wait until it is up, at most `start` seconds; say if it is."""

    @abstractmethod
    def ended(self, handle: H) -> bool:
        """Whether it is known to have ended, without a wait."""

    @abstractmethod
    def talk(self, handle: H, name: str, parcel: bytes) -> bytes | None:
        """Send a parcel for a folder and wait for its reply; None where it ends meanwhile."""

    @abstractmethod
    def end(self, handle: H) -> None:
        """End it, whatever it does."""

    def ask(self, node: FolderNode, parcel: bytes) -> bytes | None:
        """Send a parcel for one of its folders and wait for its reply; None where there is none."""
        with self._change:
            node.asks += 1
            number = node.asks
        for _ in range(self.tries):
            handle = self._taken(node, number)
            if handle is None:
                return None
            reply = None
            try:
                reply = self.talk(handle, node.name, parcel)
            finally:
                with self._change:
                    self._busy = None
                    if reply is None:
                        self._end(handle)
                    self._change.notify_all()
            if reply is not None:
                return reply
        return None

    def give_up(self, node: FolderNode) -> None:
        """Nobody waits for what a folder was asked."""
        with self._change:
            node.given_up = node.asks
            if self._busy is node:
                self._end(self._handle)
            self._change.notify_all()

    def close(self) -> None:
        """End the worker for good."""
        with self._change:
            self._closed = True
            self._end(self._handle)
            self._change.notify_all()

    def _taken(self, node: FolderNode, number: int) -> H | None:
        """The worker, once it is up and free, for an ask that nobody has given up by then."""
        with self._change:
            for _ in range(2):  # it may end while it answers another folder
                if self._handle is None or self.ended(self._handle):
                    self._spawn()
                self._change.wait_for(
                    lambda: (
                        (self._is_up and self._busy is None)
                        or self._handle is None
                        or node.given_up >= number
                    )
                )
                if node.given_up >= number or self._closed:
                    return None
                if self._handle is not None:
                    self._busy = node
                    return self._handle
            return None

    def _spawn(self) -> None:
        self._end(self._handle)
        if self._closed:
            return
        self._handle = self.spawn()
        if self._handle is not None:
            threading.Thread(target=self._come_up, args=(self._handle,), daemon=True).start()

    def _come_up(self, handle: H) -> None:
        is_up = False
        try:
            is_up = self.comes_up(handle)
        finally:
            with self._change:
                if self._handle is handle:
                    self._is_up = is_up
                    if not is_up:
                        self._end(handle)
                self._change.notify_all()

    def _end(self, handle: H | None) -> None:
        if handle is None or handle is not self._handle:
            return
        self._handle, self._is_up = None, False
        self.end(handle)
