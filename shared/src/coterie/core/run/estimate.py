"""What a run needs, estimated from settings and sizes of the data before anything is built."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from coterie.core.errors import UserError

FASTEST = 1e13
"""Operations a second of a fast accelerator: what is merely slow here is not refused."""
STEP = 1e-4
"""Seconds that a step of an optimiser takes at least, however small it is."""
_DAY = 24 * 3600
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Need:
    """What one part of a run needs at least.

    Attributes:
        what: the part, as ``the item tables``.
        settings: dotted keys that it grows with.
        memory: bytes that it holds at a time.
        operations: of a round.
        steps: of a round, one after another.
    """

    what: str
    settings: tuple[str, ...]
    memory: int = 0
    operations: int = 0
    steps: int = 0

    @property
    def days(self) -> float:
        """What a round takes, on the fastest machine."""
        return max(self.operations / FASTEST, self.steps * STEP) / _DAY


def check(needs: Sequence[Need], memory: int | None = None) -> None:
    """Refuse a run that this machine cannot hold, or whose rounds would not end within a day.

    Estimates are from below, so what is refused is hopeless.

    Args:
        needs: of all parts.
        memory: bytes of the machine; default is asked of the system.

    Raises:
        UserError: it needs too much; what was estimated and what to lower is named.

    Example:
        >>> check([Need("the item table", ("model.dim",), memory=8 << 40)], memory=16 << 30)
        Traceback (most recent call last):
        ...
        coterie.core.errors.UserError: the item table would take about 8.8 TB of memory, and this \
machine has 17.2 GB: lower --model.dim
    """
    if not needs:
        return
    here = machine_memory() if memory is None else memory
    largest = max(needs, key=lambda need: need.memory)
    if sum(need.memory for need in needs) > here:
        raise UserError(
            f"{largest.what} would take about {decimal(largest.memory)} of memory, and this "
            f"machine has {decimal(here)}: lower {_flags(largest)}"
        )
    longest = max(needs, key=lambda need: need.days)
    if longest.days > 1:
        raise UserError(
            f"{longest.what} would take about {longest.days:.2g} days a round, on the fastest "
            f"machine: lower {_flags(longest)}"
        )


def machine_memory() -> int:
    """Bytes of this machine's memory, or of the part that this process may use."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(limit.read_text()))
    return min(found)


def _flags(need: Need) -> str:
    return " or ".join(f"--{key}" for key in need.settings)
