"""Private state of all clients, kept for the simulation: row views, never one object a client."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from coterie.core import tree
from coterie.core.messages import Private

P = TypeVar("P", bound=Private)


class PrivateStore(Generic[P]):
    """Private state of the clients enrolled so far: one stacked tree, a row a client.

    Example:
        >>> import dataclasses
        >>> @dataclasses.dataclass(frozen=True)
        ... class Taste(Private):
        ...     vector: Tensor
        >>> store = PrivateStore()
        >>> store.enrol(torch.tensor([4, 7]), Taste(torch.zeros(2, 3)))
        >>> store.commit(torch.tensor([7]), Taste(torch.ones(1, 3)))
        >>> store.take(torch.tensor([4, 7])).vector.sum(1).tolist()
        [0.0, 3.0]
    """

    def __init__(self) -> None:
        self._place = torch.empty(0, dtype=torch.int64)  # id -> row, -1 = not enrolled
        self._rows: P | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def newcomers(self, ids: Tensor) -> Tensor:
        """Those of ``ids``, ``(R,)`` int64, that are not enrolled."""
        self._reserve(ids)
        return ids[self._place[ids] < 0]

    def enrol(self, ids: Tensor, private: P) -> None:
        """Add newcomers with their stacked private state."""
        self._reserve(ids)
        self._place[ids] = torch.arange(self._count, self._count + ids.numel())
        self._count += ids.numel()
        self._rows = private if self._rows is None else tree.concatenate(self._rows, private)

    def take(self, ids: Tensor) -> P:
        """Copy the private state of ``ids``, stacked in that order.

        Raises:
            KeyError: a client is not enrolled.
        """
        return tree.take(self._enrolled(), self._places(ids))

    def commit(self, ids: Tensor, private: P) -> None:
        """Write the private state of ``ids`` back."""
        places = self._places(ids)
        tree.map_tensors(
            lambda old, new: old.index_copy_(0, places, new), self._enrolled(), private
        )

    def to_plain(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        return {"place": self._place, "count": self._count, "rows": tree.to_plain(self._rows)}

    def load_plain(self, plain: dict[str, Any], like: P) -> None:
        """Restore what `to_plain` gave; ``like`` gives the structure.

        Raises:
            KeyError: the checkpoint holds another structure.
        """
        self._place, self._count = plain["place"], plain["count"]
        rows = plain["rows"]
        self._rows = None if rows is None else tree.from_plain(like, rows)

    def _enrolled(self) -> P:
        if self._rows is None:
            raise KeyError("no client is enrolled")
        return self._rows

    def _places(self, ids: Tensor) -> Tensor:
        self._reserve(ids)
        places = self._place[ids]
        if bool((places < 0).any()):
            raise KeyError(f"clients {ids[places < 0].tolist()[:5]} are not enrolled")
        return places

    def _reserve(self, ids: Tensor) -> None:
        missing = int(ids.max()) + 1 - self._place.numel() if ids.numel() else 0
        if missing > 0:
            self._place = torch.cat([self._place, torch.full((missing,), -1)])
