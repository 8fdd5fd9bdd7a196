"""``coterie bench PAPER``: measure speed against a reference loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.arguments import Arguments, paper_first, wants_help
from coterie.core.cli.output import print_json, print_rows, say
from coterie.core.errors import UserError
from coterie.core.registry.papers import load
from coterie.core.run.runfolder import DEFAULT_OUT
from coterie.core.settings.configuration import configure
from coterie.core.tables.report import Report

ABOUT = (
    "Measure speed and memory against a reference loop that is part of the benchmark. Every "
    "setting of `coterie train PAPER` may be given too."
)


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: the paper has no benchmark, or a setting is bad.
    """
    parser = Arguments("bench PAPER", ABOUT)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    if wants_help(argv):
        say(parser.format_help().rstrip())
        return
    paper, rest = paper_first(argv, "bench")
    if paper.bench is None:
        raise UserError(f"{paper.name} has no benchmark")
    given, flags = parser.parse_known_args(rest)
    settings = configure(paper, flags).settings
    rows = []
    for row in load(paper.bench)(settings):
        rows.append(row)
        if given.json:
            print_json(row)
    report = Report("bench", f"Speed of {paper.name}", rows)
    saved = report.save(Path(settings.run.out or DEFAULT_OUT) / paper.name / "bench")
    if not given.json:
        print_rows(rows, title=report.title)
        say(f"Written to {saved}")
