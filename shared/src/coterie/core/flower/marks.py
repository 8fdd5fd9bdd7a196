"""Processes by a mark in their environment, which all inherit that they start. Torch-free."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MARK = "COTERIE_KEPT"
"""Variable of the environment with the marks, apart by spaces."""


def with_marks(*marks: str) -> dict[str, str]:
    """The variable for a process to be started: marks beside those that this process bears."""
    return {MARK: " ".join([*os.environ.get(MARK, "").split(), *marks])}


def marked(mark: str) -> list[int]:
    """Numbers of the processes that bear a mark, by what Linux tells of their environment."""
    found, name = [], f"{MARK}=".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone, or somebody else's
            said = (path / "environ").read_bytes().split(b"\0")
            marks = next((one for one in said if one.startswith(name)), name)[len(name) :]
            if mark.encode() in marks.split() and not is_zombie(int(path.name)):
                found.append(int(path.name))
    return found


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and nobody has waited for it.

    Raises:
        OSError: it is gone, or there is no /proc here.
    """
    said = Path(f"/proc/{pid}/stat").read_text()
    return said.rpartition(")")[2].split()[0] == "Z"
