"""``coterie privacy PAPER``: show what leaves a client, or attack the uploads of a run."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.cli.arguments import Arguments
from coterie.core.cli.output import print_rows, say
from coterie.core.errors import UserError
from coterie.core.registry.importing import heavy
from coterie.core.registry.papers import Paper, find_paper, load, papers
from coterie.core.run.runfolder import paper_of
from coterie.core.tables.report import markdown_table


def run(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("privacy", "Show every field that crosses the boundary of a client.")
    parser.add_argument("paper", nargs="?", metavar="PAPER", help="of one paper; default: of all")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--markdown", action="store_true", help="print a markdown table")
    parser.add_argument(
        "--steps", nargs="+", default=[], metavar="STEP", help="those that privacy.steps is to name"
    )
    parser.add_argument("--attack", type=Path, metavar="RUN", help="attack one upload of a run")
    parser.add_argument(
        "--noise", type=float, nargs="+", default=[0.0, 0.1, 0.3, 0.5], help="Laplace scales"
    )
    given = parser.parse_args(argv)
    chosen = [find_paper(given.paper)] if given.paper else papers().values()
    if given.attack is not None:
        paper_of(given.attack)
        rows, figure = heavy("coterie.core.run.serving").attack(given.attack, given.noise)
        print_rows(rows, "How well one upload tells a user's positive items", given.json)
        if not given.json and figure is not None:
            say(f"Drawn in {figure}")
        return
    for paper in chosen:
        _show(paper, given)


def _show(paper: Paper, given: Namespace) -> None:
    if paper.client is None:
        raise UserError(f"{paper.name} names no client class, so its protocol is not known")
    table, client = heavy("coterie.core.privacy.table"), load(paper.client)
    heavy("coterie.core.privacy.build").check_steps(given.steps, client.steps())
    rows = table.protocol_table(client, given.steps)
    if given.json:
        print_rows(({"paper": paper.name} | row for row in rows), as_json=True)
    elif given.markdown:
        say("\n".join(markdown_table(rows)))
    else:
        print_rows(rows, f"What crosses the boundary in {paper.name}", style=_style)
        say(table.UNITS)


def _style(row: Mapping[str, Any]) -> str:
    """What leaves a client is bold."""
    return "bold" if row["direction"] == "up" else "dim"
