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


def change_parameters(up: U, change: Change) -> U:
    """Replace every parameter of an upload by ``change(path, value)``.

    Parameters are the fields declared to reveal `Reveals.PARAMETERS` or `Reveals.ITEMS_TOUCHED`;
    what they hold is walked. A `Report` has none. Losses, metrics and counts pass as they are: no
    guarantee covers them.

    Args:
        up: the stacked upload.
        change: gets the dotted path and a `Rows` or a tensor ``(C, ...)``.
    """
    fields: dict[str, Any] = {}
    for name in parameter_fields(up):
        inside = {name: getattr(up, name)}
        paths = iter([path for path, _ in tree.values(inside)])
        fields |= tree.map_values(lambda value, paths=paths: change(next(paths), value), inside)
    return dataclasses.replace(up, **fields) if fields else up  # type: ignore[type-var]


def parameters(up: Any) -> list[Rows | Tensor]:
    """List the parameters of an upload, in declaration order."""
    found: Any = [tree.values(getattr(up, name)) for name in parameter_fields(up)]
    return [leaf for leaves in found for _, leaf in leaves]


def parameter_fields(up: Any) -> list[str]:
    """Names of the fields that hold parameters."""
    if up is None or isinstance(up, Report):
        return []
    return [field.name for field in declared(type(up)) if field.reveals in PARAMETERS]
