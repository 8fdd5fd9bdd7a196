"""Trees of tensors: dataclasses and dicts whose leaves are tensors or plain values.

Messages, private state and server state are such trees. A *stacked* tree has the client axis
first in every tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def children(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named children of a dataclass or a dict; nothing for a leaf."""
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        yield from ((f.name, getattr(tree, f.name)) for f in dataclasses.fields(tree))
    elif isinstance(tree, dict):
        yield from tree.items()


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(path, leaf)`` for every leaf that is not None, in declaration order.

    Example:
        >>> [(path, leaf.tolist()) for path, leaf in leaves({"a": {"b": torch.ones(2)}})]
        [('a.b', [1.0, 1.0])]
    """
    if _is_node(tree):
        for name, child in children(tree):
            yield from leaves(child, f"{path}.{name}" if path else name)
    elif tree is not None:
        yield path, tree


def tensors(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the leaves that are tensors."""
    return ((path, leaf) for path, leaf in leaves(tree) if isinstance(leaf, Tensor))


def map_tensors(function: Callable[..., Tensor], tree: T, *others: T) -> T:
    """Apply ``function`` to every tensor of a tree (and the same places of others).

    Plain values (numbers, strings, None) are taken from the first tree.

    Example:
        >>> map_tensors(torch.add, {"a": torch.ones(1)}, {"a": torch.ones(1)})
        {'a': tensor([2.])}
    """
    if isinstance(tree, Tensor):
        return function(tree, *others)  # type: ignore[return-value]
    if not _is_node(tree):
        return tree
    columns = [dict(children(other)) for other in others]
    new = {
        name: map_tensors(function, child, *(column[name] for column in columns))
        for name, child in children(tree)
    }
    if isinstance(tree, dict):
        return new  # type: ignore[return-value]
    return dataclasses.replace(tree, **new)  # type: ignore[type-var]


def take(tree: T, index: Tensor) -> T:
    """Clients ``index`` of a stacked tree, copied. Nodes with a ``take`` of their own use it.

    Example:
        >>> take({"a": torch.arange(3)}, torch.tensor([2, 0]))
        {'a': tensor([2, 0])}
    """
    if isinstance(tree, Tensor):
        return tree[index]  # type: ignore[return-value]
    if hasattr(tree, "take"):
        return tree.take(index)
    if not _is_node(tree):
        return tree
    new = {name: take(child, index) for name, child in children(tree)}
    if isinstance(tree, dict):
        return new  # type: ignore[return-value]
    return dataclasses.replace(tree, **new)  # type: ignore[type-var]


def clone(tree: T) -> T:
    """Copy every tensor."""
    return map_tensors(Tensor.clone, tree)


def concatenate(first: T, second: T) -> T:
    """Put two stacked trees of one structure one after the other.

    Nodes with a ``concatenate`` of their own use it.
    """
    if hasattr(first, "concatenate"):
        return first.concatenate(second)
    if isinstance(first, Tensor):
        return torch.cat([first, second])  # type: ignore[list-item, return-value]
    if not _is_node(first):
        return first
    others = dict(children(second))
    new = {name: concatenate(child, others[name]) for name, child in children(first)}
    if isinstance(first, dict):
        return new  # type: ignore[return-value]
    return dataclasses.replace(first, **new)  # type: ignore[type-var]


def columns(rows: Tensor, like: Tensor) -> Tensor:
    """Shape a value a client, ``(C,)``, as ``(C, 1, ...)``: it broadcasts against ``like``.

    Args:
        rows: ``(C,)``.
        like: ``(C, ...)`` or ``(1, ...)``; only its number of axes matters.

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
    """Turn dataclasses into dicts, for a checkpoint that holds tensors and plain values only."""
    if isinstance(tree, list):
        return [to_plain(child) for child in tree]
    if _is_node(tree):
        return {name: to_plain(child) for name, child in children(tree)}
    return tree


def from_plain(like: T, plain: Any) -> T:
    """Rebuild a tree of the structure of ``like`` from what `to_plain` gave.

    Raises:
        KeyError: a field is missing, or there is one too many.
    """
    if plain is None or not _is_node(like):
        return plain
    names = dict(children(like)).keys()
    if unknown := set(plain) ^ set(names):
        raise KeyError(f"'{sorted(unknown)[0]}' is in one of the two only")
    if isinstance(like, dict):
        return {name: from_plain(child, plain[name]) for name, child in like.items()}  # type: ignore[return-value]
    new = {name: from_plain(child, plain[name]) for name, child in children(like)}
    return dataclasses.replace(like, **new)  # type: ignore[type-var]


def _is_node(tree: Any) -> bool:
    return isinstance(tree, dict) or (dataclasses.is_dataclass(tree) and not isinstance(tree, type))
