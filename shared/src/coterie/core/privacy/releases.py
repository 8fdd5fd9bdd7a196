"""Which parts of an upload are releases; the protocol of an algorithm as a table.

A field is one by what it is declared to reveal (`Reveals.is_release`): parameters, residuals, fits.
Losses, metrics and counts are none; they pass as they are, and no guarantee covers them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import AnyStep, Report, Up, contents, declared, relayed
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


# The protocol of an algorithm as a table: what goes down, what leaves, what it reveals.

COLUMNS = ("step", "direction", "message", "field", "content", "reveals", "depends on", "noise")


UNITS = (
    "What 'noise' calls covered, clipping and noise change where they are set; with privacy.at "
    "server the server adds the noise, once, and sees each upload without. privacy/epsilon is "
    "then for all data of a client (privacy.clip_by upload), or for one entry of each tensor of an "
    "upload (privacy.clip_by entry). It says nothing of the rest, nor of steps that privacy.steps "
    "leaves out. Uploads that a method only sums leave a process or a machine as one sum of its "
    "clients; with aggregate.rule each leaves by itself, for the server to compare, or with "
    "aggregate.over nodes as the sum, of which the rule compares one a machine."
)
"""What the column "noise" means, in words."""


def protocol_table(
    client_class: type[Client[Any, Any]], noised: Sequence[str] = ()
) -> list[dict[str, str]]:
    """List every field that crosses the boundary, from the client's steps.

    The column "depends on" names the private fields that may influence an upload (a test checks
    it); "noise" says whether clipping and noise, when set, cover the field.

    Args:
        client_class: the client half.
        noised: steps that have noise (``privacy.steps``); all if none is named.
    """
    rows: list[dict[str, str]] = []
    for name, step in client_class.steps().items():
        if step.down is not None:
            rows += [_row(name, "down", step.down, *field) for field in contents(step.down)]
        if step.up is not None:
            rows += _leaving(name, step.up, not noised or name in noised)
    return rows


def _leaving(step: str, up: type[Up], has_noise: bool) -> list[dict[str, str]]:
    rows = []
    passed_on = relayed(up)
    for leaf in declared(up):
        covered = has_noise and leaf.name in release_names(up)
        content = leaf.what + ", passed on to other clients" * (leaf.name in passed_on)
        row = _row(step, "up", up, leaf.name, content)
        row["reveals"] = leaf.reveals.value
        row["depends on"] = ", ".join(sorted(leaf.depends_on)) or "-"
        row["noise"] = "covered" if covered else "not covered"
        rows.append(row)
    return rows


def _row(step: str, way: str, message: type, field: str, content: str) -> dict[str, str]:
    cells = (step, way, message.__name__, field, content, "-", "-", "-")
    return dict(zip(COLUMNS, cells, strict=True))
