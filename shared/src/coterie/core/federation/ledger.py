"""The ledger: every byte that crosses the boundary, counted from shapes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.core.tensors import tree
from coterie.core.tensors.stacked import Stacked


@dataclass
class Ledger:
    """Bytes by step, direction and field, since the start of the run.

    Attributes:
        totals: ``(step, direction, field) -> [messages, bytes]``, direction "up" or "down".
    """

    totals: dict[tuple[str, str, str], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )

    def down(self, step: str, message: Any, n_clients: int) -> None:
        """Count one message sent to each of ``n_clients``."""
        for path, leaf in tree.values(message):
            self._add(step, "down", path, n_clients, n_clients * tree.nbytes(leaf))

    def up(self, step: str, message: Any, n_clients: int) -> None:
        """Count an upload, stacked over ``n_clients`` or of one."""
        for name, value in tree.children(message):
            if value is not None:
                size = sum(tree.nbytes(leaf) for _, leaf in tree.values(value))
                self._add(step, "up", name, n_clients, size)

    def crossed(self, step: str, direction: str, field: str, messages: int, size: int) -> None:
        """Count what crossed beside messages, such as activations of a split model.

        Args:
            step: in which.
            direction: "up" from the client or "down" to it.
            field: what it is.
            messages: how many.
            size: bytes of all of them.

        Example:
            >>> ledger = Ledger()
            >>> ledger.crossed("update", "up", "activations", 2, 4096)
            >>> ledger.crossed("update", "up", "activations", 1, 4)
            >>> ledger.bytes("up"), ledger.rows()[0]["messages"]
            (4100, 3)
        """
        self._add(step, direction, field, messages, size)

    def bytes(self, direction: str) -> int:
        """Bytes in one direction so far."""
        return sum(b for (_, d, _), (_, b) in self.totals.items() if d == direction)

    def rows(self) -> list[dict[str, Any]]:
        """The table of the ledger, as plain rows."""
        return [
            {"step": step, "direction": way, "field": name, "messages": count, "bytes": size}
            for (step, way, name), (count, size) in sorted(self.totals.items())
        ]

    def load(self, rows: list[dict[str, Any]]) -> None:
        """Restore what `rows` gave."""
        self.totals.clear()
        for row in rows:
            key = (row["step"], row["direction"], row["field"])
            self.totals[key] = [row["messages"], row["bytes"]]

    def _add(self, step: str, way: str, name: str, count: int, size: int) -> None:
        entry = self.totals[step, way, name]
        entry[0] += count
        entry[1] += size


def stacked_bytes(message: Any) -> Tensor:
    """Bytes of each client's part of a stacked upload, ``(C,)`` int64."""
    sizes = []
    for _, leaf in tree.values(message):
        if isinstance(leaf, Stacked):
            sizes.append(leaf.nbytes())
        elif leaf.shape[0]:
            sizes.append(torch.full((leaf.shape[0],), leaf[0].numel() * leaf.element_size()))
    return torch.stack(sizes).sum(0)
