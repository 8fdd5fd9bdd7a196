"""Which parts of an upload are releases: real numbers that clipping and noise are about.

A field is one by what it is declared to reveal (`Reveals.is_release`): parameters, residuals, fits.
Losses, metrics and counts are none; they pass as they are, and no guarantee covers them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.protocol.messages import Report, Up, declared
from coterie.core.protocol.step import AnyStep
from coterie.core.tensors import tree
from coterie.core.tensors.rows import Rows

U = TypeVar("U")
Change = Callable[[str, Any], Any]


def change_releases(up: U, change: Change) -> U:
    """Replace every release of an upload by ``change(path, value)``.

    What the fields hold is walked. A `Report` has no releases.

    Args:
        up: the stacked upload.
        change: gets the dotted path and a `Rows` or a tensor ``(C, ...)`` of real numbers.

    Raises:
        UserError: a release holds something else, such as ids, which can be neither clipped nor
            hidden by noise.
    """
    inside = _inside(up)
    paths = iter([path for path, value in tree.values(inside) if _real(path, value)])
    fields = tree.map_values(lambda value: change(next(paths), value), inside)
    return dataclasses.replace(up, **fields) if fields else up  # type: ignore[type-var]


def releases(up: Any) -> list[Rows | Tensor]:
    """List the releases of an upload, in declaration order.

    Raises:
        UserError: as `change_releases`.
    """
    found: Any = tree.values(_inside(up))
    return [leaf for path, leaf in found if _real(path, leaf)]


def release_count(up: Any) -> int:
    """Count the tensors, or changes of rows, that are releases of an upload, stacked or of one."""
    return sum(1 for _ in tree.values(_inside(up)))


def release_names(message: type[Up] | None) -> list[str]:
    """Names of the fields of a class of uploads that hold releases."""
    if message is None or issubclass(message, Report):
        return []
    return [field.name for field in declared(message) if field.reveals.is_release]


def releasing(steps: Mapping[str, AnyStep[Any, Any]]) -> dict[str, list[str]]:
    """The steps of a client half whose uploads have releases, with the names of their fields."""
    found = {name: release_names(step.up) for name, step in steps.items()}
    return {name: fields for name, fields in found.items() if fields}


def _inside(up: Any) -> dict[str, Any]:
    names = [] if up is None else release_names(type(up))
    return {name: getattr(up, name) for name in names}


def _real(path: str, value: Any) -> bool:
    """Whether a release holds real numbers.

    Raises:
        UserError: it does not.
    """
    if isinstance(value, Rows) or (isinstance(value, Tensor) and value.is_floating_point()):
        return True
    raise UserError(
        f"upload field '{path}' holds no real numbers, so it can be neither clipped nor hidden by "
        "noise: leave privacy.clip and privacy.noise out, or choose another method"
    )
