"""``coterie msmt attack``: tell training rows from what a run's scenarios upload."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coterie.core.cli.command import JSON_HELP, Arguments, aside, positive, print_json, print_report
from coterie.core.errors import UserError
from coterie.core.files import write_json
from coterie.core.run.runfolder import RunFolder
from coterie.msmt.settings import Settings

ABOUT = (
    "Play the first rounds of a run once more, listen as the server does to what scenarios upload, "
    "and tell their training rows from test rows by it, and, where embeddings are shared, which "
    "categories occur. Then the same behind clipping and Gaussian noise, with the test AUC that is "
    "left. Writes attack.md, attack.json and attack.png into the run's folder."
)
ROUNDS = (1, 4)
SCALES = (0.001, 0.01, 0.1)
_SILENT = {"local": "nothing is uploaded", "central": "the server has the samples themselves"}


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: there is no such run, nothing is uploaded in it, its folder cannot be written, or
            an argument is bad.
    """
    given = _parser().parse_args(list(argv))
    scales = _numbers("--scales", given.scales) if given.scales else list(SCALES)
    clip = _number("--clip", given.clip) if given.clip else None
    folder = RunFolder.open(given.run)
    _check(folder)
    settings = folder.settings
    rounds = _rounds(given.rounds, settings.rounds)
    # Torch only where it is needed: --help does not wait for it.
    import torch

    from coterie.core.run.checkpoint import check_data_there, check_folder
    from coterie.core.tables.jobs import Counting
    from coterie.msmt.attack.report import NAME, attack, protections, report
    from coterie.msmt.experiment import Experiment

    torch.set_num_threads(settings.engine.threads)
    with aside(given.json):
        on_cpu = replace(settings, engine=replace(settings.engine, device="cpu"))
        check_data_there(folder)
        experiment = Experiment(on_cpu)
        check_folder(folder.path, experiment.federation())
        runs = 1 + len(protections(settings.privacy, 1.0, clip, scales))
        with Counting("Attack", runs * rounds[-1], settings.run.progress) as bar:
            rows = attack(experiment, rounds, scales, clip, given.rows, bar.done)
        what = f"{_method(settings)} on {experiment.task.name}, seed {settings.seed}"
        found = report(rows, f"What uploads tell of training rows: {what}", folder.path)
        path = found.save(folder.path)
        about = {"method": settings.method, "notes": list(found.notes), "rows": rows}
        write_json(folder.path / f"{NAME}.json", about)
    if given.json:
        print_json(rows)
        return
    print_report(found, path)


def _parser() -> Arguments:
    parser = Arguments("msmt attack", ABOUT)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--rounds", metavar="R,R", help="judge after these rounds (default: 1,4, or the last)"
    )
    parser.add_argument(
        "--scales",
        metavar="S,S",
        help="standard deviations of the noise, as privacy.scale (default: 0.001,0.01,0.1)",
    )
    parser.add_argument(
        "--clip",
        metavar="C",
        help="largest norm of an upload, as privacy.clip (default: the run's own, or the smallest "
        "power of two that no upload exceeds)",
    )
    parser.add_argument(
        "--rows",
        type=positive,
        default=1000,
        metavar="N",
        help="most training rows, and test rows, of a scenario to tell apart (default: 1000)",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser


def _method(settings: Settings) -> str:
    """Name the method, and what PF-MSMTrec shares beside what the paper does."""
    more = settings.pf.share if settings.method == "pf-msmtrec" else ()
    return settings.method + (f" with {', '.join(more)} shared" if more else "")


def _check(folder: RunFolder) -> None:
    if folder.paper != "pf-msmtrec":
        raise UserError(
            f"{folder.path} is a run of {folder.paper}: coterie msmt attack reads runs of "
            "pf-msmtrec"
        )
    method, is_control = folder.settings.method, folder.settings.ensemble.partner == "local"
    why = _SILENT["local"] if method == "ensemble" and is_control else _SILENT.get(method)
    if why is not None:
        raise UserError(
            f"{folder.path} is a run of the method {method}, in which {why}: there are no uploads "
            "to attack"
        )
    if not os.access(folder.path, os.W_OK):
        raise UserError(
            f"cannot write {folder.path}, where the report goes: make it writable, or attack a "
            "copy of the run"
        )


def _rounds(text: str | None, last: int) -> list[int]:
    """Read the rounds to judge after, ascending.

    Raises:
        UserError: one is no round of the run.
    """
    if text is None:
        return sorted({min(number, last) for number in ROUNDS})
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--rounds must be whole numbers above 0, as 1,4, not '{text}'")
    rounds = sorted({int(word) for word in words})
    if rounds[-1] > last:
        raise UserError(f"--rounds {rounds[-1]}: the run has {last}, name rounds up to that")
    return rounds


def _numbers(name: str, text: str) -> list[float]:
    return list(dict.fromkeys(_number(name, word) for word in text.split(",")))


def _number(name: str, text: str) -> float:
    """Read a number above 0.

    Raises:
        UserError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"{name} must be numbers above 0, not '{text}'")
    return value
