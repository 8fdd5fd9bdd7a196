"""``coterie llm export``: the older name of ``coterie export`` for an adapter of pplr."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.command import JSON_HELP, Arguments
from coterie.core.cli.export import export
from coterie.core.run.exported import Asked

ABOUT = (
    "Save a client's adapter of the best round as a folder of peft: coterie export --format peft; "
    "or with --merged its whole model as a folder of transformers: coterie export."
)


def run(argv: Sequence[str]) -> None:
    """Run the command; errors are those of `coterie.core.cli.export.export`."""
    parser = Arguments("llm export", ABOUT)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="trained run")
    parser.add_argument("--client", type=int, required=True, help="whose adapter, from 0")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--merged", action="store_true", help="the whole model, adapter merged")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="what `llm serve` has kept of a run split there"
    )
    parser.add_argument("--server", dest="state", type=Path, default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    given = parser.parse_args(list(argv))
    form, asked = "safetensors" if given.merged else "peft", Asked(given.client)
    export(given.run, given.to.expanduser(), form, asked, given.state, given.json)
