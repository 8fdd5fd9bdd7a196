"""What a node was asked, line by line: for its owner, who need not believe the server. Torch-free.

``requests.jsonl`` has a line for every parcel that came, written before its reply is given. A file
of 10 MB is put aside under a number, and stays until the owner removes it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.files import writing

LOG = "requests.jsonl"
MOST_BYTES = 10_000_000
"""Of a file."""


@dataclass(frozen=True)
class Asked:
    """One parcel that came to a node.

    Attributes:
        time: in UTC.
        folder: of the clients that it was for.
        parcel: its name; equal names are equal requests after equal histories.
        run: of the server; empty where the parcel could not be read.
        epoch: how often the run's server was started.
        turn: how many rounds it has begun.
        attempt: how often it tried this one before.
        block: of the round.
        round: in the block.
        step: that was asked for.
        missed: requests of earlier rounds that came with it.
        down: bytes that came.
        up: bytes that left.
        answered: clients whose answer left.
        why: the parcel, or a client of it, was refused.
        seconds: that the answer took.
    """

    time: str
    folder: str
    parcel: str = ""
    run: str = ""
    epoch: int = 0
    turn: int = 0
    attempt: int = 0
    block: int = 0
    round: int = 0
    step: str = ""
    missed: int = 0
    down: int = 0
    up: int = 0
    answered: int = 0
    why: str = ""
    seconds: float = 0.0


def note(node: Path, asked: Asked, most: int = MOST_BYTES) -> None:
    """Write a line.

    Raises:
        UserError: the disk is full, or the file cannot be written: nothing may leave then.
    """
    path = node / LOG
    with writing(path, "then the node goes on", "make it writable"):
        if path.exists() and path.stat().st_size >= most:
            os.replace(path, _aside(path))
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(handle).st_size
            # What a full disk has cut short must not take this line with it.
            begin = b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
            line = begin + json.dumps(asdict(asked)).encode() + b"\n"
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)


def now() -> str:
    """The time as a line has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def noted(node: Path) -> Iterator[Asked]:
    """All lines, the oldest first; one that was cut short, by a loss of power say, is left out.

    Raises:
        UserError: a file cannot be read.
    """
    for path in [*sorted(node.glob("requests-*.jsonl")), node / LOG]:
        if not path.exists():
            continue
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        for line in lines:
            with suppress(ValueError, TypeError):
                yield Asked(**json.loads(line))


def _aside(path: Path) -> Path:
    """The next free name for a file that is full; names sort as time goes."""
    known = [one.stem.rpartition("-")[2] for one in path.parent.glob("requests-*.jsonl")]
    newest = max((int(one) for one in known if one.isdecimal()), default=0)
    return path.with_name(f"{path.stem}-{newest + 1:06d}{path.suffix}")


def remarks(lines: list[Asked], card: Mapping[str, Any]) -> list[str]:
    """What an owner should know of what was asked, by the card that was agreed on.

    Args:
        lines: of `noted`.
        card: as JSON.
    """
    steps, rounds = card.get("messages", {}), card.get("settings", {}).get("rounds")
    found: dict[str, None] = {}
    tries: dict[tuple[str, int, str], dict[tuple[int, int], None]] = {}
    for one in lines:
        if one.why:
            found[f"refused: {one.why}"] = None
        if not one.run or one.step.startswith("@"):  # who is there; no step
            continue
        if steps and one.step not in steps:
            found[f"step '{one.step}', which the card does not have, was asked for"] = None
        if one.block >= card.get("blocks", 1):
            found[f"block {one.block}, which the card does not have, was asked for"] = None
        if isinstance(rounds, int) and one.round > rounds:
            found[f"round {one.round} of block {one.block} is beyond the card's {rounds}"] = None
        tries.setdefault((one.run, one.turn, one.folder), {})[one.epoch, one.attempt] = None
    runs = dict.fromkeys(one.run for one in lines if one.run)
    if len(runs) > 1:
        found[f"{len(runs)} runs have asked: {', '.join(runs)}"] = None
    for (run, turn, folder), each in tries.items():
        if len(each) > 1:
            found[
                f"round {turn} of run {run} was tried {len(each)} times with {folder}; each try "
                "may tell more of the data"
            ] = None
    return list(found)
