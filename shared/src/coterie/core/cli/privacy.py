"""``coterie privacy PAPER``: show what leaves a client."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from coterie.core.cli.arguments import Arguments, paper_first, wants_help
from coterie.core.cli.output import console, print_json, say
from coterie.core.errors import UserError
from coterie.core.papers import load


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: the paper is unknown, or names no client.
    """
    parser = Arguments("privacy PAPER", "Show every field that crosses the boundary of a client.")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--markdown", action="store_true", help="print a markdown table")
    if wants_help(argv):
        say(parser.format_help().rstrip())
        return
    paper, rest = paper_first(argv, "privacy")
    given = parser.parse_args(rest)
    if paper.client is None:
        raise UserError(f"{paper.name} names no client class, so its protocol is not known")
    table = import_module("coterie.core.privacy.table")
    rows = table.protocol_table(load(paper.client))
    if given.json:
        for row in rows:
            print_json(row)
    elif given.markdown:
        say(table.to_markdown(rows).rstrip())
    else:
        console().print(table.to_rich(rows, title=f"What crosses the boundary in {paper.name}"))
