"""``coterie bench PAPER``: measure speed against a reference loop."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.cli.arguments import Arguments
from coterie.core.cli.output import JSON_HELP, aside, print_json, print_report
from coterie.core.errors import UserError
from coterie.core.registry.papers import load
from coterie.core.settings.configuration import configure
from coterie.core.tables.report import Report

_ABOUT_BENCH = (
    "Measure speed and memory against a reference loop that is part of the benchmark. Every "
    "setting of `coterie train PAPER` may be given too."
)


def run_bench(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("bench PAPER", _ABOUT_BENCH)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    paper, given, flags = parser.of_paper(argv)
    if paper.bench is None:
        raise UserError(f"{paper.name} has no benchmark")
    settings = configure(paper, flags).settings
    with aside(given.json):
        rows = list(load(paper.bench)(settings))
    report = Report("bench", f"Speed of {paper.name}", rows)
    saved = report.save(settings.run.folder / paper.name / "bench")
    if given.json:
        print_json(rows)
    else:
        print_report(report, saved)
