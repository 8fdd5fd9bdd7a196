"""``coterie certify-engines PAPER``: whether clients elsewhere give the bits of one process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
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
from coterie.core.flower.programs import check_installed
from coterie.core.registry.papers import heavy, load
from coterie.core.settings.configuration import configure

ABOUT = (
    "Run a paper with all clients in one process, and with the same groups of clients elsewhere: "
    "in processes of their own, and by --supernodes on Flower's runtime or by --ray in actors. "
    "Compare after every round what is left: the server's state, the private states of all "
    "clients, what was measured, the bytes that crossed. Every setting of `coterie train PAPER` "
    "may be given too; the preset is smoke, if none is."
)
_SHOWN = 12  # digits of a digest


def run_certify(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend, and where bits differ."""
    parser = Arguments("certify-engines PAPER", ABOUT)
    parser.add_argument("--processes", type=positive, default=3, help="how many (default: 3)")
    parser.add_argument(
        "--supernodes",
        type=positive,
        help="as many nodes of Flower as well, with TLS and keys, on this machine",
    )
    parser.add_argument(
        "--ray",
        metavar="HOST:PORT",
        help="actors on this Ray cluster as well, or on this machine's by 'local'",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    paper, given, flags = parser.of_paper(argv)
    preset = [] if any(flag.startswith("--preset") for flag in flags) else ["--preset", "smoke"]
    settings = configure(paper, [*preset, *flags]).settings
    with aside(given.json), tempfile.TemporaryDirectory() as folder:
        if given.supernodes and given.ray:
            raise UserError(
                "Flower and Ray are compared one by one: leave --supernodes or --ray out"
            )
        if given.supernodes:
            check_installed()
            of_flower = heavy("coterie.core.flower.certificate")
            found = of_flower.certified(paper, settings, Path(folder), given.supernodes)
        else:
            found = _digests(
                load(paper.experiment)(settings), Path(folder), given.processes, given.ray
            )
        rows = []
        with heavy("coterie.core.tables.jobs").Counting("Rounds", None, not given.json) as bar:
            for row in map(_row, found):
                rows.append(row)
                bar.done(f"block {row['block']}, round {row['round']}")
    beside = {"SuperNodes and ": given.supernodes, "Ray actors and ": given.ray}
    others = "".join(name for name, there in beside.items() if there) + "processes"
    count = given.supernodes or given.processes
    print_rows(
        rows, f"{paper.name}, {settings.method}: one process beside {count} {others}", given.json
    )
    differs = next((row for row in rows if "≠" in "".join(map(str, row.values()))), None)
    if differs is not None:
        raise UserError(
            f"round {differs['round']} has other bits elsewhere than in one process: that is a "
            "fault of coterie or of the paper's package, please report it"
        )
    if not given.json:
        tell(f"{len(rows)} rounds, the same bits")


def _digests(
    experiment: Any, folder: Path, count: int, ray: str | None
) -> Iterator[list[dict[str, Any]]]:
    certify = heavy("coterie.core.run.certify")
    whole = experiment.federation()
    apart = certify.Apart.written(experiment, whole, folder / "processes", count)
    engines = {"processes": (apart, certify.processes(count))}
    if ray:
        own = certify.Apart.written(experiment, whole, folder / "ray", count)
        engines["ray"] = (own, certify.actors(count, ray))
    for digests in certify.certify(whole, apart.shards, engines):
        yield [asdict(one) for one in digests]


def _row(digests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A round: of each part the digest, or those that differ."""
    first = digests[0]
    parts = {
        part: " ≠ ".join(dict.fromkeys(one["parts"][part][:_SHOWN] for one in digests))
        for part in first["parts"]
    }
    return {"block": first["block"], "round": first["round"], **parts}
