"""Which parts of an upload are parameters: those that clipping and noise are about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.protocol.messages import Report, Reveals, Up, declared
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
        change: gets the dotted path and a `Rows` or a tensor ``(C, ...)`` of real numbers.

    Raises:
        UserError: a parameter holds something else, such as ids, which can be neither clipped nor
            hidden by noise.
    """
    inside = _inside(up)
    paths = iter([path for path, value in tree.values(inside) if _real(path, value)])
    fields = tree.map_values(lambda value: change(next(paths), value), inside)
    return dataclasses.replace(up, **fields) if fields else up  # type: ignore[type-var]


def parameters(up: Any) -> list[Rows | Tensor]:
    """List the parameters of an upload, in declaration order.

    Raises:
        UserError: as `change_parameters`.
    """
    found: Any = tree.values(_inside(up))
    return [leaf for path, leaf in found if _real(path, leaf)]


def parameter_names(message: type[Up] | None) -> list[str]:
    """Names of the fields of a class of uploads that hold parameters."""
    if message is None or issubclass(message, Report):
        return []
    return [field.name for field in declared(message) if field.reveals in PARAMETERS]


def _inside(up: Any) -> dict[str, Any]:
    names = [] if up is None else parameter_names(type(up))
    return {name: getattr(up, name) for name in names}


def _real(path: str, value: Any) -> bool:
    """Whether a parameter holds real numbers.

    Raises:
        UserError: it does not.
    """
    if isinstance(value, Rows) or (isinstance(value, Tensor) and value.is_floating_point()):
        return True
    raise UserError(
        f"upload field '{path}' holds no real numbers, so it can be neither clipped nor hidden by "
        "noise: leave privacy.clip and privacy.noise out, or choose another method"
    )
