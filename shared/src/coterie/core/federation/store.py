"""Private state of all clients, kept for the simulation: rows of one tree, or a list of trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from coterie.core.protocol.messages import Private
from coterie.core.tensors import tree
from coterie.core.wire.annotations import restore

P = TypeVar("P", bound=Private)


class PrivateStore(Generic[P]):
    """Private state of the clients enrolled so far.

    Stacked form: one tree whose tensors have a row for each client; one without room, ``(C, 0)``,
    gets some with the first clients that write into it, zeros for the others. List form, for
    clients whose state differs in shape: one tree for each client, taken and written one at a time.

    Args:
        stacked: False for the list form.

    Attributes:
        changes: how often it was written to.

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

    def __init__(self, stacked: bool = True) -> None:
        self.stacked = stacked
        self._place = torch.empty(0, dtype=torch.int64)  # id -> row, -1 = not enrolled
        self._rows: P | None = None
        self._list: list[P] = []
        self._count = 0
        self.changes = 0

    def __len__(self) -> int:
        return self._count

    def ids(self) -> Tensor:
        """Who is enrolled, ``(R,)`` int64 ascending."""
        return (self._place >= 0).nonzero().flatten()

    def newcomers(self, ids: Tensor) -> Tensor:
        """Those of ``ids``, ``(R,)`` int64, that are not enrolled."""
        self._reserve(ids)
        return ids[self._place[ids] < 0]

    def enrol(self, ids: Tensor, private: P) -> None:
        """Add newcomers with their stacked private state (one at a time in the list form)."""
        self.changes += 1
        self._reserve(ids)
        self._place[ids] = torch.arange(self._count, self._count + ids.numel())
        self._count += ids.numel()
        if not self.stacked:
            self._list.append(private)
        else:
            self._rows = private if self._rows is None else tree.concatenate(self._rows, private)

    def take(self, ids: Tensor) -> P:
        """The private state of ``ids``: a stacked copy, or in the list form of the one client.

        In the list form no tensor is copied: a step must not write into what it is given. Lists and
        dicts are new ones.

        Raises:
            KeyError: a client is not enrolled.
        """
        places = self._places(ids)
        if not self.stacked:
            return tree.shallow(self._list[_only(places)])
        return tree.take(self._enrolled(), places)

    def commit(self, ids: Tensor, private: P, was: P | None = None) -> None:
        """Write the private state of ``ids`` back.

        Args:
            ids: ``(K,)`` int64.
            private: of these clients.
            was: what was taken of them, if nothing was written into it: what of it stands in
                ``private``, at the same place, is not written again.
        """
        self.changes += 1
        places = self._places(ids)
        if not self.stacked:
            self._list[_only(places)] = private
            return
        try:
            self._rows = tree.put(self._enrolled(), places, private, was)
        except KeyError as error:
            if places.numel() != self._count:
                raise TypeError(
                    "private state of the stacked form can grow for all clients at once only: let "
                    "enrol() make the field, or use the list form"
                ) from error
            self._rows = tree.clone(tree.take(private, places.argsort()))

    def to_plain(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        rows = tree.to_plain(self._rows if self.stacked else self._list)
        return {"place": self._place, "count": self._count, "rows": rows}

    def load_plain(
        self, plain: dict[str, Any], like: P, fit: Callable[[P], P] = lambda private: private
    ) -> None:
        """Restore what `to_plain` gave; ``like`` gives the structure, ``fit`` makes room.

        Raises:
            KeyError: the checkpoint holds another structure, or tensors of another shape.
        """
        self._place, self._count = plain["place"], plain["count"]
        dtypes = {path: leaf.dtype for path, leaf in tree.tensors(like)}
        rows = _typed(plain["rows"], dtypes)
        if not self.stacked:
            self._list = [fit(restore(like, row)) for row in rows]
        else:
            self._rows = None if rows is None else fit(restore(like, rows))
            expected = {path: leaf.shape[1:] for path, leaf in tree.tensors(like)}
            for path, leaf in tree.tensors(self._rows):
                wanted = expected.get(path, leaf.shape[1:])
                if leaf.shape[1:] != wanted and wanted[:1] != (0,):  # else it has got room since
                    shapes = f"{tuple(leaf.shape[1:])}, not {tuple(wanted)}"
                    raise KeyError(f"'{path}' has the shape {shapes}")

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


def _typed(plain: Any, dtypes: Mapping[str, torch.dtype], path: str = "") -> Any:
    """Whole numbers from a checkpoint, as wide as they are by now."""
    if isinstance(plain, dict):
        prefix = f"{path}." if path else ""
        return {name: _typed(part, dtypes, prefix + name) for name, part in plain.items()}
    wanted = dtypes.get(path)
    if wanted is None or not isinstance(plain, Tensor):
        return plain
    whole = not plain.is_floating_point() and not wanted.is_floating_point
    return plain.to(wanted) if whole else plain


def _only(places: Tensor) -> int:
    """The single client that the list form takes at a time."""
    (place,) = places.tolist()
    return int(place)
