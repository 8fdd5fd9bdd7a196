"""``coterie bench PAPER``: measure speed against a reference loop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.arguments import Arguments
from coterie.core.cli.output import JSON_HELP, aside, print_json, print_report
from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper, load
from coterie.core.settings.configuration import configure
from coterie.core.tables.report import Report

_ABOUT_BENCH = (
    "Measure speed and memory against a reference loop that is part of the benchmark. This needs a "
    "clone of coterie: benchmarks are in the repository alone. Every setting of `coterie train "
    "PAPER` may be given too."
)
_CORE = Path(__file__).resolve().parents[1]


def run_bench(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("bench PAPER", _ABOUT_BENCH)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    paper, given, flags = parser.of_paper(argv)
    if paper.bench is None:
        raise UserError(f"{paper.name} has no benchmark")
    reach(paper)
    settings = configure(paper, flags).settings
    with aside(given.json):
        rows = list(load(paper.bench)(settings))
    report = Report("bench", f"Speed of {paper.name}", rows)
    saved = report.save(settings.run.folder / paper.name / "bench")
    if given.json:
        print_json(rows)
    else:
        print_report(report, saved)


def reach(paper: Paper) -> None:
    """Let ``benchmarks``, which a clone has on its top level, be imported.

    A paper whose benchmark is in a package of its own is imported from there, clone or not.

    Raises:
        UserError: the benchmark is in the repository, and this coterie is none of its clones.
    """
    clone = clone_of(_CORE)
    if clone is not None:
        sys.path.insert(0, str(clone))
    elif str(paper.bench).startswith("benchmarks."):
        raise UserError(
            "benchmarks are in coterie's repository, not in what is installed: git clone it, and "
            f"in the clone say make bench PAPER={paper.name}"
        )


def clone_of(core: Path) -> Path | None:
    """Find the clone that the folder of the core is a part of; None for that of a wheel."""
    if core.parts[-4:] != ("shared", "src", "coterie", "core"):
        return None
    clone = core.parents[3]
    return clone if (clone / "benchmarks" / "__init__.py").is_file() else None
