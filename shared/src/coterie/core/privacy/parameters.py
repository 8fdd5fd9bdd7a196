"""Which parts of an upload are parameters: those that clipping and noise are about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from coterie.core.protocol.messages import Report, Reveals, declared
from coterie.core.tensors import tree
from coterie.core.tensors.rows import Rows

PARAMETERS = frozenset({Reveals.PARAMETERS, Reveals.ITEMS_TOUCHED})

U = TypeVar("U")
Change = Callable[[str, Any], Any]


def is_rows(value: Any) -> bool:
    """Whether a field holds changes of table rows (implements `Rows`)."""
    return hasattr(value, "touched")


def change_parameters(up: U, change: Change) -> U:
    """Replace every parameter of an upload by ``change(path, value)``.

    Parameters are the fields declared to reveal `Reveals.PARAMETERS` or `Reveals.ITEMS_TOUCHED`;
    dicts and dataclasses inside them are walked. A `Report` has none. Losses, metrics and counts
    pass as they are: no guarantee covers them.

    Args:
        up: the stacked upload.
        change: gets the dotted path and a `Rows` or a tensor ``(C, ...)``.
    """
    fields = {name: _map(change, name, getattr(up, name)) for name in parameter_fields(up)}
    return dataclasses.replace(up, **fields) if fields else up  # type: ignore[type-var]


def parameters(up: Any) -> list[Rows | Tensor]:
    """List the parameters of an upload, in declaration order."""
    found: list[Rows | Tensor] = []

    def note(_: str, value: Any) -> Any:
        found.append(value)
        return value

    for name in parameter_fields(up):
        _map(note, name, getattr(up, name))
    return found


def parameter_fields(up: Any) -> list[str]:
    """Names of the fields that hold parameters."""
    if up is None or isinstance(up, Report):
        return []
    return [field.name for field in declared(type(up)) if field.reveals in PARAMETERS]


def _map(change: Change, path: str, value: Any) -> Any:
    if is_rows(value) or isinstance(value, Tensor):
        return change(path, value)
    children = {name: _map(change, f"{path}.{name}", child) for name, child in tree.children(value)}
    if not children or isinstance(value, dict):
        return children or value
    return dataclasses.replace(value, **children)
