"""Trees of tensors: dataclasses, dicts, lists and tuples whose leaves are tensors or plain values.

Messages, private state and server state are such trees. In a *stacked* tree every tensor has the
client axis first, and `Stacked` values stand beside tensors. What only grows (`Growing`) is walked
like a list, but for `shallow` and `to_plain`, which hand it on whole. Anything else in a tree is
refused: what the project does to messages (guard, count, copy, send, save) it does to every leaf or
not at all.

The walk is our own: torch's pytree takes 1.6 times as long on the small trees that an ask handles
thousands of times, and optree sorts the keys of dicts, which changes the order of sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core.tensors.stacked import Growing, Handle, Stacked

T = TypeVar("T")
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, Handle)


def children(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named children of a dataclass, dict, list, tuple or `Growing`; none for a leaf."""
    kind = _kind(tree)
    if kind == "dict":
        yield from tree.items()
    elif kind == "sequence" or kind == "growing":
        yield from ((str(place), child) for place, child in enumerate(tree))
    elif kind == "dataclass":
        yield from ((name, getattr(tree, name)) for name in _fields(type(tree)))


def leaves(tree: Any, path: str = "", *, whole: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield ``(path, leaf)`` for every leaf that is not None, in declaration order.

    What only grows is a leaf too if it is to stay ``whole``; its entries are walked otherwise.

    Raises:
        TypeError: something in the tree is none of the known kinds.

    Example:
        >>> [(path, leaf.tolist()) for path, leaf in leaves({"a": [torch.ones(2)]})]
        [('a.0', [1.0, 1.0])]
    """
    kind = _kind(tree)
    if kind == "tensor" or kind == "stacked" or (kind == "plain" and tree is not None):
        yield path, tree
        return
    if whole and kind == "growing":
        yield path, tree
        return
    for name, child in children(tree):
        yield from leaves(child, f"{path}.{name}" if path else name, whole=whole)


def values(tree: Any) -> Iterator[tuple[str, Tensor | Stacked]]:
    """Yield the leaves that are tensors or `Stacked`."""
    return ((p, leaf) for p, leaf in leaves(tree) if _kind(leaf) != "plain")


def tensors(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor, those that `Stacked` leaves are made of included."""
    for path, leaf in values(tree):
        if isinstance(leaf, Tensor):
            yield path, leaf
        else:
            parts = {name: getattr(leaf, name) for name in _fields(type(leaf))}
            yield from ((f"{path}.{name}" if path else name, t) for name, t in tensors(parts))


def map_values(function: Callable[..., Any], tree: T, *others: Any) -> T:
    """Apply ``function`` to every tensor and `Stacked` leaf (and the same places of others).

    Plain values (numbers, strings, None) are taken from the first tree.

    Raises:
        TypeError: something in the tree is none of the known kinds.
        KeyError: the trees have not the same structure.
    """
    kind = _kind(tree)
    if kind == "tensor" or kind == "stacked":
        return function(tree, *others)
    if kind == "plain":
        if tree is None and any(other is not None for other in others):
            raise KeyError("something stands where there was nothing")
        return tree
    if kind == "dict":
        if any(len(other) != len(tree) for other in others):  # type: ignore[arg-type]
            raise KeyError("a dict has other names")
        found: Any = {
            name: map_values(function, child, *[other[name] for other in others])
            for name, child in tree.items()  # type: ignore[attr-defined]
        }
        return found
    if kind == "sequence":
        lists: Any = (tree, *others)
        if any(len(other) != len(lists[0]) for other in others):
            raise KeyError("a list has another length")
        return _sequence(tree, [map_values(function, *parts) for parts in zip(*lists, strict=True)])
    if kind == "growing":
        if any(len(other) != len(tree) for other in others):  # type: ignore[arg-type]
            raise KeyError("what only grows has another length")
        grown: Any = tree
        return grown.mapped(partial(map_values, function), *others)
    found = {
        name: map_values(function, getattr(tree, name), *[getattr(other, name) for other in others])
        for name in _fields(type(tree))
    }
    return type(tree)(**found)


def map_tensors(function: Callable[..., Tensor], tree: T, *others: T) -> T:
    """Apply ``function`` to every tensor, those that `Stacked` leaves are made of included.

    Example:
        >>> map_tensors(torch.add, {"a": torch.ones(1)}, {"a": torch.ones(1)})
        {'a': tensor([2.])}
    """

    def change(leaf: Any, *same: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf, *same)
        parts = {
            name: map_tensors(function, getattr(leaf, name), *[getattr(one, name) for one in same])
            for name in _fields(type(leaf))
        }
        return type(leaf)(**parts)

    return map_values(change, tree, *others)


def take(tree: T, index: Tensor) -> T:
    """Clients ``index``, ``(K,)`` int64, of a stacked tree, copied.

    Example:
        >>> take({"a": torch.arange(3)}, torch.tensor([2, 0]))
        {'a': tensor([2, 0])}
    """
    return map_values(
        lambda leaf: leaf.index_select(0, index) if isinstance(leaf, Tensor) else leaf.take(index),
        tree,
    )


def shallow(tree: T) -> T:
    """The same leaves in dataclasses, dicts, lists and tuples of their own; nothing is copied.

    Example:
        >>> known = {"a": [1]}
        >>> shallow(known)["a"].append(2)
        >>> known
        {'a': [1]}
    """
    kind = _kind(tree)
    if kind not in ("dict", "sequence", "dataclass"):
        return tree
    found: Any = {name: shallow(child) for name, child in children(tree)}
    if kind == "dict":
        return found
    if kind == "sequence":
        return _sequence(tree, list(found.values()))
    return type(tree)(**found)


def clone(tree: T) -> T:
    """Copy every tensor."""
    return map_tensors(Tensor.clone, tree)


def concatenate(first: T, *others: T) -> T:
    """Put stacked trees of one structure one after the other.

    A tensor that has no room yet, ``(C, 0)``, stands for zeros where another has some.

    Example:
        >>> concatenate({"a": torch.ones(1, 2)}, {"a": torch.empty(1, 0)})
        {'a': tensor([[1., 1.],
                [0., 0.]])}
    """
    return map_values(_joined, first, *others)


def with_room(tree: T, count: int) -> T:
    """A stacked tree like this one for so many clients, whose values are open: see `put`."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.new_empty((count, *leaf.shape[1:]))
        return leaf.take(torch.zeros(count, dtype=torch.int64))

    return map_values(change, tree)


def put(tree: T, places: Tensor, new: T, was: T | None = None) -> T:
    """Write K clients into a stacked tree: tensors in place, `Stacked` leaves anew; return it.

    Each of their positions, ``places`` (``(K,)`` int64), is there once. A tensor that has no room
    yet, ``(C, 0)``, stands for zeros, and gets room for all clients with the first who need it.
    What is the very leaf of ``was``, which was taken of these clients, is not written again.
    """

    def change(old: Any, rows: Any, before: Any = None) -> Any:
        if rows is before:
            return old
        if isinstance(old, Tensor):
            return _roomy(old, rows).index_copy_(0, places, _roomy(rows, old))
        order = torch.arange(old.n_clients).index_copy(
            0, places, old.n_clients + torch.arange(places.numel())
        )
        return old.concatenate(rows).take(order)

    return map_values(change, tree, new) if was is None else map_values(change, tree, new, was)


def finite(
    found: Iterable[tuple[str, Tensor | Stacked]], n_clients: int, *, nan: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(path, which clients' part is finite)``, ``(C,)`` bool, for every leaf.

    Arguments as of `totals`.
    """
    return ((path, total.isfinite()) for path, total in totals(found, n_clients, nan=nan))


def totals(
    found: Iterable[tuple[str, Tensor | Stacked]], n_clients: int, *, nan: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(path, numbers that are finite where the clients' parts are)``, ``(C,)`` each.

    Args:
        found: leaves as `values` gives them, stacked over C clients or of one without the axis.
        n_clients: C.
        nan: whether NaN counts as finite in tensors.
    """
    for path, leaf in found:
        if not isinstance(leaf, Tensor):
            # One client of the list form may keep a stack of as many parts as it likes.
            good = leaf.finite().all()[None] if n_clients == 1 else leaf.finite()
            yield path, torch.where(good, 0.0, torch.nan)
        elif leaf.is_floating_point() and leaf.numel():
            flat = leaf.reshape(n_clients, -1)
            if nan:
                flat = torch.where(flat.isnan(), 0.0, flat)
            yield path, flat.sum(1)


def nbytes(leaf: Tensor | Stacked) -> int:
    """Bytes that a leaf takes on the wire, of all clients together."""
    if isinstance(leaf, Tensor):
        return leaf.numel() * leaf.element_size()
    return int(leaf.nbytes().sum())


def as_stack(tree: T) -> T:
    """Make a tree of one client a stack of one: the client axis, of length 1, first.

    `Stacked` leaves have it already.

    Example:
        >>> as_stack({"a": torch.ones(3)})["a"].shape
        torch.Size([1, 3])
    """
    return map_values(lambda leaf: leaf[None] if isinstance(leaf, Tensor) else leaf, tree)


def as_one(tree: T) -> T:
    """Take the client axis of a stack of one away again."""
    return map_values(lambda leaf: leaf[0] if isinstance(leaf, Tensor) else leaf, tree)


def columns(rows: Tensor, like: Tensor) -> Tensor:
    """Shape a value a client, ``(C,)``, as ``(C, 1, ...)``: it broadcasts against ``like``.

    Example:
        >>> columns(torch.ones(2), torch.ones(2, 3, 4)).shape
        torch.Size([2, 1, 1])
    """
    return rows.reshape(-1, *[1] * (like.dim() - 1))


def where_rows(rows: Tensor, these: T, others: T) -> T:
    """Choose the clients of a stacked tree from one of two.

    Args:
        rows: ``(C,)`` bool, clients taken from ``these``; the rest are taken from ``others``.
        these: gives the structure and the order of the fields.
        others: stacked as ``these``.

    Example:
        >>> rows = torch.tensor([True, False])
        >>> where_rows(rows, {"a": torch.ones(2, 1)}, {"a": torch.zeros(2, 1)})["a"].tolist()
        [[1.0], [0.0]]
    """
    return map_tensors(lambda a, b: torch.where(columns(rows, a), a, b), these, others)


def to_plain(tree: Any) -> Any:
    """Turn dataclasses into dicts, for a checkpoint that holds tensors and plain values only.

    What only grows stays whole: `coterie.core.tensors.saved` knows how it is kept.
    """
    kind = _kind(tree)
    if kind == "sequence":
        return [to_plain(child) for child in tree]
    if kind in ("dict", "dataclass"):
        return {name: to_plain(child) for name, child in children(tree)}
    if kind == "stacked":
        return {name: to_plain(getattr(tree, name)) for name in _fields(type(tree))}
    return tree


def _joined(first: Any, *others: Any) -> Any:
    if isinstance(first, Tensor):
        widest = max((first, *others), key=_width)
        return torch.cat([_roomy(leaf, widest) for leaf in (first, *others)])
    for more in others:
        first = first.concatenate(more)
    return first


def _width(leaf: Tensor) -> int:
    return leaf.shape[1] if leaf.dim() > 1 else 0


def _roomy(leaf: Tensor, like: Tensor) -> Tensor:
    """Zeros as wide as another tensor, for one that has no room yet; else the tensor itself."""
    if leaf.dim() < 2 or leaf.shape[1] or not _width(like):
        return leaf
    return leaf.new_zeros((leaf.shape[0], *like.shape[1:]))


def _sequence(like: Any, parts: list[Any]) -> Any:
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


_fields: Callable[[type], tuple[str, ...]] = cache(
    lambda cls: tuple(field.name for field in dataclasses.fields(cls))
)


def _kind(tree: Any) -> str:
    return _KINDS[type(tree)]


class _Kinds(dict[type, str]):
    """Kinds by class, each found out once."""

    def __missing__(self, cls: type) -> str:
        found = [kind for kind, classes in _CLASSES if issubclass(cls, classes)]
        found += ["dataclass"] * dataclasses.is_dataclass(cls)
        if not found:
            raise TypeError(
                f"a {cls.__name__} cannot stand in a tree of tensors: use tensors, Stacked values, "
                "numbers and text, in dicts, lists, tuples and dataclasses"
            )
        self[cls] = found[0]
        return found[0]


_KINDS = _Kinds()
_CLASSES: tuple[tuple[str, Any], ...] = (
    ("tensor", Tensor),
    ("stacked", Stacked),
    ("growing", Growing),
    ("plain", _PLAIN),
    ("dict", dict),
    ("sequence", (list, tuple)),
)
