"""``coterie dashboard PAPER``: the panels of a paper as a view of a W&B project."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    aside,
    print_json,
    say,
    tell,
    tell_facts,
)
from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper, find_paper
from coterie.core.run.workspace import apply, plan

_ABOUT = (
    "Save the panels of a paper as a view of a W&B project: an overview of its methods with bands "
    "over seeds, what every federation measures, and what the paper does. This needs an account "
    "and a network; --dry-run prints the view, and needs neither."
)


def run_dashboard(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("dashboard", _ABOUT)
    parser.add_argument("paper", metavar="PAPER", help="whose panels")
    parser.add_argument("--entity", help="user or team of W&B")
    parser.add_argument("--project", default="coterie", help="of W&B (default: coterie)")
    parser.add_argument("--dry-run", action="store_true", help="print the view, save nothing")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    given = parser.parse_args(argv)
    paper = find_paper(given.paper)
    rows = plan(paper)
    if given.dry_run:
        if given.json:
            print_json(rows)
            return
        for place, row in enumerate(rows):
            if not place or rows[place - 1]["section"] != row["section"]:
                say("" if place else f"View 'coterie {paper.name}' of the project {given.project}")
                tell(f"{row['section']} (a line: {row['lines']})")
            tell_facts(row["panel"], {"y": row["y"], "x": row["x"]})
        return
    if not given.entity:
        raise UserError("say of whom the project is: --entity NAME, or --dry-run to see the view")
    with aside(given.json):
        address = _saved(given.entity, given.project, paper)
    print_json({"view": address, "panels": rows}) if given.json else tell(f"Saved: {address}")


def _saved(entity: str, project: str, paper: Paper) -> str:
    try:
        return apply(entity, project, paper)
    except UserError:
        raise
    except Exception as error:  # of W&B: no login, no network, no such entity
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"W&B did not take the view ({reason:.200}): say wandb login first, and check --entity "
            "and the network; --dry-run needs neither"
        ) from None
