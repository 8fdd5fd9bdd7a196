"""``coterie evaluate --run DIR``: measure a trained run again on its test data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.arguments import Arguments
from coterie.core.cli.output import JSON_HELP, aside, print_json, print_rows
from coterie.core.registry.importing import heavy
from coterie.core.run.runfolder import RunFolder, paper_of


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
        print_json({**metrics, "notes": _notes(given.run)})
    else:
        print_rows(({"metric": n, "value": v} for n, v in metrics.items()), title=str(given.run))


def _notes(run: Path) -> list[str]:
    """What one should know of a finished run; nothing is said yet of another."""
    if not (run / "summary.json").is_file():
        return []
    return list(RunFolder.open(run).read_json("summary.json").get("notes", ()))
