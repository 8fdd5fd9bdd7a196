"""Rows of many clients, sent in parts that fit into messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.wire.codec import ProtocolError

_BYTES = 16  # a number's share of the largest message: half of that is filled at most


def parts(n: int, size: int, max_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Cut rows ``(n, size)`` into parts: whole rows, or pieces of one row that is too long.

    Args:
        n: clients.
        size: d, numbers of a client.
        max_bytes: of a message, with room for all else in it.

    Yields:
        Clients and columns; of one client in the order of the columns.

    Example:
        >>> [(clients.stop, columns.stop) for clients, columns in parts(5, 10, 320)]
        [(2, 10), (4, 10), (5, 10)]
        >>> [(clients.stop, columns.stop) for clients, columns in parts(2, 10, 96)]
        [(1, 6), (1, 10), (2, 6), (2, 10)]
    """
    most = max(1, max_bytes // _BYTES)
    rows, width = max(1, most // size), min(size, most)
    for first in range(0, n, rows):
        for start in range(0, size, width):
            yield slice(first, min(first + rows, n)), slice(start, min(start + width, size))


class PartialRows:
    """Rows that come in parts and are taken out together, when all of them are whole.

    A part begins where the client's part before it ended. One that begins at 0 replaces what has
    come of the client, so that everything may be sent again; any other is refused.

    Args:
        size: d, numbers of a client.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts: dict[int, list[Tensor]] = {}

    def clear(self) -> None:
        """Forget what has come."""
        self._parts.clear()

    def put(self, rows: Tensor, ids: Sequence[int], start: int) -> None:
        """Add a part; nothing of one that is refused is kept.

        Args:
            rows: ``(n, w)`` columns ``start`` to ``start + w`` of the rows.
            ids: n clients.
            start: first column.

        Raises:
            ProtocolError: it is no such part.
            UserError: it is too long, or not what comes next.
        """
        if rows.dim() != 2 or len(rows) != len(ids) or not rows.is_floating_point():
            raise ProtocolError(f"rows are {rows.dtype} {tuple(rows.shape)} for {len(ids)} clients")
        _once(ids)
        end = start + rows.shape[1]
        if not 0 <= start < end <= self._size:
            raise UserError(
                f"columns {start} to {end} are not in rows of {self._size}: use the backbone and "
                "LoRA settings of the server"
            )
        for client in ids:
            if start not in (0, self._length(client)):
                raise UserError(
                    f"client {client}'s row goes on at {self._length(client)}, not at {start}: "
                    "send it again from 0"
                )
        for client, row in zip(ids, rows, strict=True):
            self._parts[client] = [*(self._parts[client] if start else ()), row]

    def take(self, ids: Sequence[int]) -> Tensor:
        """Take the rows ``(n, d)`` of these clients out, and forget all others.

        Raises:
            UserError: one of them is not whole, and all are kept; or a client is named twice.
        """
        _once(ids)
        for client in ids:
            if self._length(client) != self._size:
                raise UserError(
                    f"of client {client}'s row {self._length(client)} of {self._size} numbers have "
                    "come: send the others first"
                )
        dtype = self._parts[ids[0]][0].dtype if ids else None
        rows = torch.empty(len(ids), self._size, dtype=dtype)
        for place, client in enumerate(ids):
            torch.cat(self._parts.pop(client), out=rows[place])  # frees what it has copied
        self.clear()
        return rows

    def _length(self, client: int) -> int:
        return sum(part.numel() for part in self._parts.get(client, ()))


def _once(ids: Sequence[int]) -> None:
    if len(set(ids)) != len(ids):
        raise UserError("a client is given twice: name every client once")
