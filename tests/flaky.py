"""Nodes that fail when they are told to, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.hosted import Here, Hosts

from coterie.core.engines.envelope import Parcel

Fault = Callable[[str, Parcel], str | None]
"""Step and parcel -> "lost" (it never came), "late" (done, but the answer is lost), or None."""


class Flaky(Here):
    """A node with faults; it notes what reached it."""

    def __init__(self, folder: Path, client: Any = None) -> None:
        super().__init__(folder, client)
        self.fault: Fault = lambda step, parcel: None
        self.heard: list[tuple[str, int, int]] = []  # step, turn, attempt

    def ask(self, parcel: bytes, seconds: float | None) -> bytes | None:
        read = Parcel.read(parcel)
        step = read.requests()[-1].step
        found = self.fault(step, read)
        if found != "lost":
            self.heard += [
                (one.step, read.header.turn, read.header.attempt) for one in read.requests()
            ]
            reply = super().ask(parcel, seconds)
        return None if found else reply


class FlakyHosts(Hosts):
    """The exchange with them; ``hosts`` are theirs."""

    def __init__(self, folders: Sequence[Path], client: Any = None, **options: Any) -> None:
        super().__init__(folders, client, **options)
        self.hosts: list[Any] = [Flaky(folder, client) for folder in folders]
        for member, host in zip(self.members, self.hosts, strict=True):
            member.node = host


def once(step: str, turn: int, how: str) -> Fault:
    """Fail at the first try of a step in a turn; gone for the rest of that try."""
    tried: list[int] = []

    def fault(asked: str, parcel: Parcel) -> str | None:
        header = parcel.header
        if header.turn != turn or header.attempt or header.epoch:
            return None
        if asked == step and not tried:
            tried.append(1)
            return how
        return "lost" if tried else None

    return fault
