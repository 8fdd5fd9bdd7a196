"""``coterie privacy PAPER``: show what leaves a client, or attack the uploads of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.arguments import Arguments, wants_help
from coterie.core.cli.output import console, print_json, print_rows, say
from coterie.core.errors import UserError
from coterie.core.registry.importing import heavy
from coterie.core.registry.papers import Paper, find_paper, load, papers
from coterie.core.run.runfolder import paper_of


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: the paper is unknown, or names no client.
    """
    parser = Arguments(
        "privacy [PAPER]", "Show every field that crosses the boundary of a client, of all papers."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--markdown", action="store_true", help="print a markdown table")
    parser.add_argument("--attack", type=Path, metavar="RUN", help="attack one upload of a run")
    parser.add_argument(
        "--noise", type=float, nargs="+", default=[0.0, 0.1, 0.3, 0.5], help="Laplace scales"
    )
    if wants_help(argv):
        say(parser.format_help().rstrip())
        return
    named = bool(argv) and not argv[0].startswith("-")
    chosen = [find_paper(argv[0])] if named else list(papers().values())
    given = parser.parse_args(argv[1:] if named else argv)
    if given.attack is not None:
        paper_of(given.attack)
        rows, figure = heavy("coterie.core.run.serving").attack(given.attack, given.noise)
        if given.json:
            for row in rows:
                print_json(row)
        else:
            print_rows(rows, title="How well one upload tells a user's positive items")
            say(f"Drawn in {figure}")
        return
    for paper in chosen:
        _show(paper, given.json, given.markdown)


def _show(paper: Paper, as_json: bool, as_markdown: bool) -> None:
    if paper.client is None:
        raise UserError(f"{paper.name} names no client class, so its protocol is not known")
    table = heavy("coterie.core.privacy.table")
    rows = table.protocol_table(load(paper.client))
    if as_json:
        for row in rows:
            print_json({"paper": paper.name} | row)
    elif as_markdown:
        say(table.to_markdown(rows).rstrip())
    else:
        console().print(table.to_rich(rows, title=f"What crosses the boundary in {paper.name}"))
