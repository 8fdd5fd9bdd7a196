"""``coterie export --run RUN --to DIR``: a trained model for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.command import JSON_HELP, Arguments, aside, print_json, tell
from coterie.core.export.card import check_format
from coterie.core.registry.papers import heavy
from coterie.core.run.exported import Asked
from coterie.core.run.runfolder import paper_of

ABOUT = (
    "Write the model of a run's tested round for other programs, into a new folder with a model "
    "card. What was written is read back and must give the same scores. State of clients is "
    "private and stays where it is, unless --client or --user asks for that of one."
)


def run_export(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("export", ABOUT)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="trained run")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--format",
        default="safetensors",
        metavar="FORMAT",
        help="safetensors (default); onnx: a graph of what scores; peft: an adapter of pplr",
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--client", type=int, metavar="C", help="with this client's own state")
    whose.add_argument("--user", metavar="ID", help="with this user's own state")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="what `llm serve` has kept of a run split there"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    given = parser.parse_args(list(argv))
    asked = Asked(given.client, given.user)
    export(given.run, given.to.expanduser(), given.format, asked, given.state, given.json)


def export(run: Path, to: Path, form: str, asked: Asked, kept: Path | None, as_json: bool) -> None:
    """Export, and say what was written; raise `UserError` for what the user can mend."""
    check_format(paper_of(run), form)
    with aside(as_json):
        found = heavy("coterie.core.export.write").export(run, to, form, asked, kept)
    if as_json:
        print_json(found.__dict__)
        return
    exact = "bit for bit" if not found.difference else f"to {found.difference:.1e}"
    own = f" with what is {found.whose}'s own" if found.whose else ""
    tell(f"Written to {found.folder}{own}, of {found.tested}: {', '.join(found.files)}")
    tell(f"Read back, it answers as before, {exact}.")
