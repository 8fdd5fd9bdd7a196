"""``coterie certify-engines PAPER``: whether processes give the bits of one process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    aside,
    positive,
    print_rows,
    tell,
)
from coterie.core.errors import UserError
from coterie.core.registry.papers import heavy, load
from coterie.core.settings.configuration import configure

ABOUT = (
    "Run a paper with all clients in one process, and with the same groups of clients in processes "
    "of their own, and compare after every round what is left: the server's state, the private "
    "states of all clients, what was measured, the bytes that crossed. Every setting of `coterie "
    "train PAPER` may be given too; the preset is smoke, if none is."
)
_SHOWN = 12  # digits of a digest


def run_certify(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend, and where bits differ."""
    parser = Arguments("certify-engines PAPER", ABOUT)
    parser.add_argument("--processes", type=positive, default=3, help="how many (default: 3)")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    paper, given, flags = parser.of_paper(argv)
    preset = [] if any(flag.startswith("--preset") for flag in flags) else ["--preset", "smoke"]
    settings = configure(paper, [*preset, *flags]).settings
    with aside(given.json), tempfile.TemporaryDirectory() as folder:
        rows = _rows(load(paper.experiment)(settings), Path(folder), given.processes)
    title = f"{paper.name}, {settings.method}: one process beside {given.processes}"
    print_rows(rows, title, given.json)
    differs = next((row for row in rows if "≠" in "".join(map(str, row.values()))), None)
    if differs is not None:
        raise UserError(
            f"round {differs['round']} has other bits in processes of their own: that is a fault "
            "of coterie or of the paper's package, please report it"
        )
    if not given.json:
        tell(f"{len(rows)} rounds, the same bits")


def _rows(experiment: Any, folder: Path, processes: int) -> list[dict[str, Any]]:
    certify = heavy("coterie.core.run.certify")
    rows = []
    for one, other in certify.certify(experiment, folder, processes):
        both = {part: (one.parts[part], other.parts[part]) for part in certify.PARTS}
        shown = {part: _shown(*digests) for part, digests in both.items()}
        rows.append({"block": one.block, "round": one.round, **shown})
    return rows


def _shown(one: str, other: str) -> str:
    return one[:_SHOWN] if one == other else f"{one[:_SHOWN]} ≠ {other[:_SHOWN]}"
