"""``coterie table PAPER --table 2``: reproduce a table or a figure of a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.arguments import Arguments, paper_first, positive, seeds, wants_help
from coterie.core.cli.output import aside, print_json, print_rows, say
from coterie.core.errors import UserError
from coterie.core.registry.papers import load
from coterie.core.run.runfolder import DEFAULT_OUT
from coterie.core.settings.configuration import configure

ABOUT = (
    "Reproduce a table or a figure of a paper beside its own numbers. Every setting of "
    "`coterie train PAPER` may be given too, as --data NAME."
)


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: the paper has no such table, or a setting is bad.
    """
    parser = Arguments("table PAPER", ABOUT)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table", type=positive, metavar="N", help="number of the paper's table")
    which.add_argument("--figure", type=positive, metavar="N", help="number of the paper's figure")
    parser.add_argument("--seeds", type=seeds, help="how many, or which: 5, or '0 1 2'")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    if wants_help(argv):
        say(parser.format_help().rstrip())
        return
    paper, rest = paper_first(argv, "table")
    if paper.tables is None:
        raise UserError(f"{paper.name} reproduces no tables")
    given, flags = parser.parse_known_args(rest)
    chosen = configure(paper, flags)
    with aside(given.json):
        report = load(paper.tables)(
            chosen, table=given.table, figure=given.figure, seeds=given.seeds
        )
    saved = report.save(Path(chosen.settings.run.out or DEFAULT_OUT) / paper.name / "tables")
    if given.json:
        for row in report.rows:
            print_json(row)
        return
    print_rows(report.view or report.rows, title=report.title)
    for note in report.notes:
        say(note)
    say(f"Written to {saved}")
