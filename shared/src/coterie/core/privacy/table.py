"""The protocol of an algorithm as a table: what goes down, what leaves, what it reveals."""

from __future__ import annotations

from typing import Any

from coterie.core.privacy.parameters import PARAMETERS
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Report, Up, contents, declared

COLUMNS = ("step", "direction", "message", "field", "content", "reveals", "depends on", "noise")


def protocol_table(client_class: type[Client[Any, Any]]) -> list[dict[str, str]]:
    """List every field that crosses the boundary, from the client's steps.

    The column "depends on" names the private fields that may influence an upload (a test checks
    it); "noise" says whether clipping and noise, when set, cover the field.
    """
    rows: list[dict[str, str]] = []
    for name, step in client_class.steps().items():
        if step.down is not None:
            rows += [_row(name, "down", step.down, *field) for field in contents(step.down)]
        if step.up is not None:
            rows += _leaving(name, step.up)
    return rows


def _leaving(step: str, up: type[Up]) -> list[dict[str, str]]:
    rows = []
    for leaf in declared(up):
        covered = leaf.reveals in PARAMETERS and not issubclass(up, Report)
        row = _row(step, "up", up, leaf.name, leaf.what)
        row["reveals"] = leaf.reveals.value
        row["depends on"] = ", ".join(sorted(leaf.depends_on)) or "-"
        row["noise"] = "covered" if covered else "not covered"
        rows.append(row)
    return rows


def _row(step: str, way: str, message: type, field: str, content: str) -> dict[str, str]:
    cells = (step, way, message.__name__, field, content, "-", "-", "-")
    return dict(zip(COLUMNS, cells, strict=True))
