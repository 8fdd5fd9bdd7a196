"""The protocol of an algorithm as a table: what goes down, what leaves, what it reveals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.privacy.releases import release_names
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Up, contents, declared, relayed

COLUMNS = ("step", "direction", "message", "field", "content", "reveals", "depends on", "noise")


UNITS = (
    "What 'noise' calls covered, clipping and noise change where they are set. privacy/epsilon is "
    "then for all data of a client (privacy.clip_by upload), or for one entry of each tensor of an "
    "upload (privacy.clip_by entry). It says nothing of the rest, nor of steps that privacy.steps "
    "leaves out."
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
