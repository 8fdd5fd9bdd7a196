"""What there is to say of the tensors of one client: shapes, bytes, norms, rows that changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.protocol.messages import Reveals, Up, declared
from coterie.core.tensors import tree
from coterie.core.tensors.rows import DenseRows, Rows
from coterie.core.tensors.stacked import Stacked
from coterie.core.wire.codec import tensors_of

FEW = 4
"""First values that are told of a tensor."""


@dataclass(frozen=True)
class Fact:
    """Of one field that crossed, or of one tensor of it.

    Attributes:
        field: its path.
        shape: of the tensor; of changed rows that of the table. None for a plain value.
        dtype: of its values.
        bytes: on the wire; 0 for a plain value, which the ledger does not count.
        norm: Euclidean, of real numbers; None of others.
        values: the first ones, or the plain value itself.
        rows: numbers of the rows that changed; None where it is no change of rows.
        items: the same as ids and titles, where the table is that of the items.
    """

    field: str
    shape: tuple[int, ...] | None
    dtype: str
    bytes: int
    norm: float | None
    values: Any
    rows: list[int] | None = None
    items: list[str] | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON has it; without what does not apply."""
        found = dataclasses.asdict(self)
        return {name: value for name, value in found.items() if value is not None}


def facts_of(message: Any, titles: Sequence[str] = ()) -> list[Fact]:
    """List the facts of a message of one client, without a client axis.

    Args:
        message: any tree; None has none.
        titles: of items by their numbers, for rows that an upload declares to be those of items.

    Example:
        >>> [fact] = facts_of({"row": torch.tensor([3.0, 4.0])})
        >>> fact.shape, fact.bytes, fact.norm, fact.values
        ((2,), 8, 5.0, [3.0, 4.0])
    """
    found: list[Fact] = []
    of_items = _of_items(message)
    for path, leaf in tree.leaves(message):
        if isinstance(leaf, Rows):
            found.append(_of_rows(path, leaf, titles if path.split(".")[0] in of_items else ()))
        elif isinstance(leaf, Tensor):
            found.append(_of_tensor(path, leaf))
        elif isinstance(leaf, Stacked):
            found += [_of_tensor(name, part) for name, part in tensors_of({path: leaf}).items()]
        else:
            found.append(Fact(path, None, type(leaf).__name__, 0, None, _plain(leaf)))
    return found


def _of_items(message: Any) -> set[str]:
    """Fields of an upload whose rows are items."""
    fields = declared(type(message)) if isinstance(message, Up) else ()
    return {field.name for field in fields if field.reveals is Reveals.ITEMS_TOUCHED}


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _of_tensor(path: str, leaf: Tensor) -> Fact:
    return Fact(
        path,
        tuple(leaf.shape),
        _dtype(leaf),
        tree.nbytes(leaf),
        norm(leaf),
        leaf.flatten()[:FEW].tolist(),
    )


def _of_rows(path: str, leaf: Rows, titles: Sequence[str]) -> Fact:
    travels = leaf.wire()
    table = leaf.dense()[0]
    if isinstance(travels, DenseRows):  # nobody sees which rows a client had
        rows = list(range(table.shape[0]))
    else:
        rows = travels.index.values.tolist()
    items = [titles[row] for row in rows] if table.shape[0] <= len(titles) else None
    first = table[rows[:1]].flatten()[:FEW].tolist()
    size = int(leaf.nbytes().sum())
    return Fact(path, tuple(table.shape), _dtype(table), size, norm(table), first, rows, items)


def _dtype(leaf: Tensor) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def norm(leaf: Tensor) -> float | None:
    """Euclidean norm of real numbers; None of others.

    Example:
        >>> norm(torch.ones(4)), norm(torch.ones(4, dtype=torch.int64))
        (2.0, None)
    """
    return float(leaf.double().norm()) if leaf.is_floating_point() else None


def changes_of(before: Any, after: Any) -> list[dict[str, Any]]:
    """Compare two states of a client, tensor by tensor.

    Returns:
        For each tensor or plain value, as far as it applies: ``field``; ``changed``, whether a bit
        of it is another; ``norm_before`` and ``norm`` of real numbers; ``value_before`` and
        ``value`` of what is a single one; ``shape`` and ``bytes`` after the round; ``rows``, how
        many entries of the first axis are others, and ``change``, the norm of the difference.

    Example:
        >>> [found] = changes_of({"a": torch.zeros(3, 2)}, {"a": torch.tensor([[0.0, 3]] * 3)})
        >>> found["changed"], found["rows"], round(found["change"], 3)
        (True, 3, 5.196)
    """
    old, new = _flat(before), _flat(after)
    return [_change(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]


def _flat(state: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, leaf in tree.leaves(state):
        found |= tensors_of({path: leaf}) if isinstance(leaf, Stacked) else {path: leaf}
    return found


def _change(name: str, old: Any, new: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"field": name, "changed": not _same(old, new)}
    if isinstance(old, Tensor):
        found["norm_before"] = norm(old)
    found["value_before"] = _single(old)
    if isinstance(new, Tensor):
        found |= {"shape": list(new.shape), "bytes": tree.nbytes(new), "norm": norm(new)}
    found["value"] = _single(new)
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        found |= _difference(old, new)
    return {key: value for key, value in found.items() if value is not None}


def _single(value: Any) -> Any:
    """A plain value, or that of a tensor without axes; None of what has more."""
    if isinstance(value, Tensor):
        return None if value.dim() else value.item()
    return None if value is None else _plain(value)


def _difference(old: Tensor, new: Tensor) -> dict[str, Any]:
    if old.shape != new.shape or not new.dim():
        return {}
    differs = (new != old) & ~((new != new) & (old != old))
    entries = int((differs.flatten(1).any(1) if new.dim() > 1 else differs).sum())
    return {"rows": entries, "change": norm(new.double() - old.double())}


def _same(old: Any, new: Any) -> bool:
    """Whether two leaves are the same, bit for bit."""
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        alike = old.shape == new.shape and old.dtype == new.dtype
        return alike and torch.equal(_bits(old), _bits(new))
    return type(old) is type(new) and bool(old == new)


def _bits(leaf: Tensor) -> Tensor:
    return leaf.detach().cpu().contiguous().view(-1).view(torch.uint8)
