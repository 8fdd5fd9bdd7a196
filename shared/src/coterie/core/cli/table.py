"""``coterie table PAPER --table 2``: reproduce a table or a figure of a paper."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.cli.arguments import Arguments, positive, seeds
from coterie.core.cli.output import JSON_HELP, aside, print_json, print_report
from coterie.core.errors import UserError
from coterie.core.registry.papers import load
from coterie.core.settings.configuration import configure

_ABOUT_TABLE = (
    "Reproduce a table or a figure of a paper beside its own numbers. Every setting of "
    "`coterie train PAPER` may be given too, as --data NAME."
)


def run_table(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("table PAPER", _ABOUT_TABLE)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table", type=positive, metavar="N", help="number of the paper's table")
    which.add_argument("--figure", type=positive, metavar="N", help="number of the paper's figure")
    parser.add_argument("--seeds", type=seeds, help="how many, or which: 5, or '0 1 2'")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    paper, given, flags = parser.of_paper(argv)
    if paper.tables is None:
        raise UserError(f"{paper.name} reproduces no tables")
    chosen = configure(paper, flags)
    with aside(given.json):
        report = load(paper.tables)(
            chosen, table=given.table, figure=given.figure, seeds=given.seeds
        )
    saved = report.save(chosen.settings.run.folder / paper.name / "tables")
    if given.json:
        print_json(report.rows)
    else:
        print_report(report, saved)
