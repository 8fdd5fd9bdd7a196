"""What the code of a paper declares to cross the boundary of its clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper, heavy, load

if TYPE_CHECKING:
    from coterie.core.looking.facts import RunFacts


def releases(paper: Paper, steps: Sequence[str]) -> list[dict[str, str]]:
    """What crosses the boundary of a client, field by field.

    Raises:
        UserError: the paper does not say, or has none of these steps.
    """
    if paper.client is None:
        raise UserError(f"{paper.name} names no client class, so its protocol is not known")
    table, client = heavy("coterie.core.privacy.releases"), load(paper.client)
    heavy("coterie.core.privacy.build").check_steps(steps, client.steps())
    rows: list[dict[str, str]] = table.protocol_table(client, steps)
    return rows


def declared(run: RunFacts) -> list[dict[str, str]]:
    """The same of a run, with its setting of what is covered by noise.

    Raises:
        UserError: as `releases`.
    """
    return releases(run.paper, run.config.get("privacy.steps") or [])


def units() -> str:
    """What the column "noise" means, in words."""
    text: str = heavy("coterie.core.privacy.releases").UNITS
    return text
