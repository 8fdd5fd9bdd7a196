"""What each client sent and received since the start of a run, field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Parties:
    """Messages and bytes by direction, field and client.

    An organisation is a party of its own. Users are counted together, as ``clients``.

    Example:
        >>> parties = Parties()
        >>> parties.add("up", "change", "3", 1, 400)
        >>> parties.add("up", "change", "3", 1, 400)
        >>> parties.rows()
        [{'direction': 'up', 'field': 'change', 'party': '3', 'messages': 2, 'bytes': 800}]
    """

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str, str], list[int]] | None = {}

    def add(self, direction: str, field: str, party: str, messages: int, size: int) -> None:
        """Count what crossed.

        Args:
            direction: "up" from a client, or "down" to it.
            field: of the message; its parts, as ``weights.head.bias``, count for it.
            party: the client.
            messages: how many crossed.
            size: bytes of all of them.
        """
        if self._totals is None:
            return
        key = (direction, field.partition(".")[0], party)
        entry = self._totals.setdefault(key, [0, 0])
        entry[0] += messages
        entry[1] += size

    def rows(self) -> list[dict[str, Any]] | None:
        """The table as plain rows; None where a part of the run was not counted."""
        if self._totals is None:
            return None
        return [
            {"direction": way, "field": field, "party": party, "messages": count, "bytes": size}
            for (way, field, party), (count, size) in sorted(self._totals.items())
        ]

    def load(self, rows: Iterable[Mapping[str, Any]] | None) -> None:
        """Restore what `rows` gave; None, as of an older version, is never known again."""
        if rows is None:
            self._totals = None
            return
        self._totals = {
            (row["direction"], row["field"], row["party"]): [row["messages"], row["bytes"]]
            for row in rows
        }
