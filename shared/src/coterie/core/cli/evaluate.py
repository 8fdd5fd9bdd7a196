"""``coterie evaluate --run DIR``: measure a trained run again on its test data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.arguments import Arguments
from coterie.core.cli.output import JSON_HELP, aside, print_json, print_rows
from coterie.core.registry.importing import heavy
from coterie.core.run.runfolder import paper_of


def run_evaluate(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("evaluate", "Measure a trained run again on its test data.")
    parser.add_argument("--run", required=True, type=Path, help="folder of the run")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    given = parser.parse_args(argv)
    paper_of(given.run)
    with aside(given.json):
        metrics = heavy("coterie.core.run.serving").evaluate(given.run)
    if given.json:
        print_json(metrics)
    else:
        print_rows(({"metric": n, "value": v} for n, v in metrics.items()), title=str(given.run))
