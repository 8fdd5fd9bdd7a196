"""``coterie assisted attack``: read ratings off what a run's organisations exchange."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.assisted.settings import EXCHANGING
from coterie.core.cli.command import JSON_HELP, Arguments, aside, positive, print_json, print_report
from coterie.core.errors import UserError
from coterie.core.files import write_json
from coterie.core.run.runfolder import RunFolder

if TYPE_CHECKING:
    from coterie.assisted.experiment import Experiment
    from coterie.core.tables.report import Report

DRAWS, SERVER = 10, "server"
ABOUT = (
    "Read ratings off the residuals that organisations of a run send in round 1, as the server or "
    "another organisation could: with the run's own protections, and with each of a list. Nothing "
    "is trained. Writes attack.md, attack.json and attack.png into the run's folder."
)


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: there is no such run, it exchanges nothing, its folder cannot be written, or
            there is no such organisation.
    """
    given = _parser().parse_args(list(argv))
    folder = RunFolder.open(given.run)
    _check(folder)
    # Torch only where it is needed: --help does not wait for it.
    import torch

    from coterie.assisted.experiment import Experiment
    from coterie.core.run.checkpoint import check_data_there, check_folder

    settings = folder.settings
    torch.set_num_threads(settings.engine.threads)
    with aside(given.json):
        check_data_there(folder)
        experiment = Experiment(replace(settings, engine=replace(settings.engine, device="cpu")))
        check_folder(folder.path, experiment.federation())
        read = _sums if settings.method == "sums" else _residuals
        found = read(experiment, given, folder.path)
        path = found.save(folder.path)
        about = {"reader": given.reader, "notes": list(found.notes), "rows": found.rows}
        write_json(folder.path / f"{found.name}.json", about)
    if given.json:
        print_json(found.rows)
        return
    print_report(found, path)


def _residuals(experiment: Experiment, given: Namespace, folder: Path) -> Report:
    """Read the residuals that organisations send.

    Raises:
        UserError: there is no such organisation, or more than was sent is to be read.
    """
    from coterie.assisted.attack_report import attack, protections, report
    from coterie.core.tables.jobs import Counting

    settings = experiment.settings
    names = [one.domain.name for one in experiment.organisations.each]
    reader = None if given.reader == SERVER else _number(given.reader, names)
    once = settings.method == "residuals"
    if once and given.draws:
        raise UserError("the method residuals sends residuals once: leave --draws out")
    draws = given.draws or (1 if once else DRAWS)
    total = len(protections(settings, 1.0, given.epsilon))
    with Counting("Attack", total, settings.run.progress) as bar:
        rows = attack(experiment, reader, draws, given.epsilon, bar.done)
    return report(rows, "the server" if reader is None else f"organisation {reader}", folder)


def _sums(experiment: Experiment, given: Namespace, folder: Path) -> Report:
    """Read the sums that organisations send.

    Raises:
        UserError: an organisation is to read, which is sent none, or the same are to come again.
    """
    from coterie.assisted.sums_attack import exposures, report

    if given.reader != SERVER or given.draws:
        raise UserError(
            "sums go to the server alone, anew in every round: leave --reader and --draws out"
        )
    return report(exposures(experiment), experiment.settings)


def _parser() -> Arguments:
    parser = Arguments("assisted attack", ABOUT)
    parser.add_argument(
        "--run", type=Path, required=True, metavar="RUN", help="folder of a run of MTAL"
    )
    parser.add_argument(
        "--reader",
        default=SERVER,
        help="who reads: server (default), or the number or name of an organisation",
    )
    parser.add_argument(
        "--draws",
        type=positive,
        help="of the same residuals, averaged (default: 10); not where they are sent once",
    )
    parser.add_argument(
        "--epsilon", type=_above_0, default=1.0, help="of Laplace noise, in a round (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser


def _check(folder: RunFolder) -> None:
    if folder.paper != "mtal":
        raise UserError(
            f"{folder.path} is a run of {folder.paper}: coterie assisted attack reads runs of mtal"
        )
    if folder.settings.method not in EXCHANGING:
        raise UserError(
            f"{folder.path} is a run of the method {folder.settings.method}, in which nothing is "
            "exchanged: there is nothing to attack"
        )
    if not os.access(folder.path, os.W_OK):
        raise UserError(
            f"cannot write {folder.path}, where the report goes: make it writable, or attack a "
            "copy of the run"
        )


def _number(reader: str, names: Sequence[str]) -> int:
    """Number of the organisation that is meant.

    Raises:
        UserError: there is none.
    """
    if reader in names:
        return list(names).index(reader)
    if reader.isdecimal() and int(reader) < len(names):
        return int(reader)
    raise UserError(
        f"there is no organisation '{reader}': they are 0 to {len(names) - 1}, "
        f"{', '.join(names[:3])} and so on"
    )


def _above_0(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f"--epsilon must be a number above 0, not '{text}'")
    return value
