"""What a filter leaves out of a data set, so that no row goes without a word. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Dropped:
    """What one filter left out.

    Attributes:
        why: what the rows are, as ``rated below 4``.
        rows: how many went.
        of: how many there were before.
        users: users who have no row left by it.
        items: items that have no row left by it.
    """

    why: str
    rows: int
    of: int
    users: int = 0
    items: int = 0

    def __str__(self) -> str:
        """Say it in one line.

        Example:
            >>> str(Dropped("rated below 4", 1200, 3000, users=2, items=1))
            'left out: 1,200 of 3,000 rows, rated below 4 (2 users and 1 item have none left)'
        """
        gone = [_counted(self.users, "user")] * (self.users > 0)
        gone += [_counted(self.items, "item")] * (self.items > 0)
        have = "has" if self.users + self.items == 1 else "have"
        without = f" ({' and '.join(gone)} {have} none left)" if gone else ""
        return f"left out: {self.rows:,} of {_counted(self.of, 'row')}, {self.why}{without}"


def in_words(dropped: Iterable[Dropped]) -> list[str]:
    """Say what filters left out, a line each, in their order; nothing of one that left all in.

    This is all that commands print and runs keep of it.
    """
    return [str(each) for each in dropped if each.rows]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
