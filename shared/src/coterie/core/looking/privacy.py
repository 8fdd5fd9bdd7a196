"""What the code of a paper declares to cross the boundary of its clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.core.errors import UserError, nearest
from coterie.core.registry.papers import Paper, heavy, load

if TYPE_CHECKING:
    from coterie.core.looking.facts import RunFacts


def releases(paper: Paper, steps: Sequence[str], method: str | None = None) -> list[dict[str, str]]:
    """What crosses the boundary of a client, field by field.

    Args:
        paper: whose clients they are.
        steps: that have noise (``privacy.steps``).
        method: of the paper; by default the one that its client class is of.

    Raises:
        UserError: the paper does not say, has no such method, or none of these steps.
    """
    if method is not None and method not in paper.methods:
        raise UserError(f"{paper.name} has no method '{method}': {nearest(method, paper.methods)}")
    name = paper.client_of(method)
    if name is None:
        raise UserError(f"{paper.name} names no client class, so its protocol is not known")
    table, client = heavy("coterie.core.privacy.releases"), load(name)
    heavy("coterie.core.privacy.build").check_steps(steps, client.steps())
    rows: list[dict[str, str]] = table.protocol_table(client, steps)
    return rows


def declared(run: RunFacts) -> list[dict[str, str]]:
    """The same of a run, with its setting of what is covered by noise.

    Raises:
        UserError: as `releases`.
    """
    return releases(run.paper, run.config.get("privacy.steps") or [], run.config.get("method"))


def units() -> str:
    """What the column "noise" means, in words."""
    text: str = heavy("coterie.core.privacy.releases").UNITS
    return text
