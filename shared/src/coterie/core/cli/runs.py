"""Commands on a trained run: measure it again, recommend items."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    aside,
    positive,
    print_json,
    print_rows,
    tell,
)
from coterie.core.data.sources.text_files import existing
from coterie.core.errors import UserError
from coterie.core.registry.papers import heavy
from coterie.core.run.recommendation_files import check_out
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


# ``coterie recommend --run DIR``: recommend items to a user of a run, a new one, or all.


def run_recommend(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("recommend", "Recommend items to a user of a run, a new one, or all.")
    parser.add_argument("--run", required=True, type=Path, help="folder of the run")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--user", help="id of the user, as in the data set")
    who.add_argument(
        "--new-user",
        type=Path,
        metavar="FILE",
        help="history of someone new (column 'item' or 'title', or as in the run's own file; "
        "'rating'); adapts here, uploads nothing",
    )
    who.add_argument("--all", action="store_true", help="all users of the run, into --out")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="with --all: columns user, rank, item, score; .csv, .tsv or .jsonl, also with .gz, "
        "or .parquet",
    )
    parser.add_argument("--top", type=positive, default=10, help="how many items (default: 10)")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    given = parser.parse_args(argv)
    paper_of(given.run)
    if given.new_user is not None:
        existing(given.new_user)
    if given.all or given.out is not None:
        _all(given)
        return
    with aside(given.json):
        rows, notes = heavy("coterie.core.run.serving").recommend(
            given.run, user=given.user, new_user=given.new_user, top=given.top
        )
    for note in notes:
        sys.stderr.write(f"coterie: {note}\n")
    who_for = f"user {given.user}" if given.user is not None else str(given.new_user)
    if given.json:
        print_json({"recommendations": rows, "notes": notes})
    elif rows:
        print_rows(rows, f"For {who_for}")


def _all(given: Namespace) -> None:
    if not given.all or given.out is None:
        raise UserError("--all and --out FILE.csv go together: give both or neither")
    check_out(given.out)
    with aside(given.json):
        served = heavy("coterie.core.run.serving").recommend_all(given.run, given.out, given.top)
    if given.json:
        print_json({**served._asdict(), "file": str(given.out)})
        return
    without = f" ({served.left_out:,} took no part and have none)" if served.left_out else ""
    tell(f"Written to {given.out}: {served.users:,} users{without}")
    if served.finished:
        sys.stderr.write(
            f"coterie: nothing is left to recommend to {served.finished:,} more users: they have "
            "consumed all items\n"
        )
