"""``coterie assisted attack``: read ratings off what a run's organisations exchange."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coterie.assisted.settings import SENDING
from coterie.core.cli.command import JSON_HELP, Arguments, aside, positive, print_json, print_report
from coterie.core.errors import UserError
from coterie.core.files import write_json
from coterie.core.run.runfolder import RunFolder

DRAWS = 10
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

    from coterie.assisted.attack_report import NAME, attack, protections, report
    from coterie.assisted.experiment import Experiment
    from coterie.core.run.checkpoint import check_data_there, check_folder
    from coterie.core.tables.jobs import Counting

    settings = folder.settings
    draws = given.draws or (DRAWS if settings.method == "mtal" else 1)
    torch.set_num_threads(settings.engine.threads)
    with aside(given.json):
        check_data_there(folder)
        experiment = Experiment(replace(settings, engine=replace(settings.engine, device="cpu")))
        check_folder(folder.path, experiment.federation())
        names = [one.domain.name for one in experiment.organisations.each]
        reader = None if given.reader == "server" else _number(given.reader, names)
        total = len(protections(experiment.settings, 1.0, given.epsilon))
        with Counting("Attack", total, settings.run.progress) as bar:
            rows = attack(experiment, reader, draws, given.epsilon, bar.done)
        who = "the server" if reader is None else f"organisation {reader}"
        found = report(rows, who, folder.path)
        path = found.save(folder.path)
        about = {"reader": given.reader, "notes": list(found.notes), "rows": rows}
        write_json(folder.path / f"{NAME}.json", about)
    if given.json:
        print_json(rows)
        return
    print_report(found, path)


def _parser() -> Arguments:
    parser = Arguments("assisted attack", ABOUT)
    parser.add_argument(
        "--run", type=Path, required=True, metavar="RUN", help="folder of a run of MTAL"
    )
    parser.add_argument(
        "--reader",
        default="server",
        help="who reads: server (default), or the number or name of an organisation",
    )
    parser.add_argument(
        "--draws",
        type=positive,
        help="of the same residuals, averaged (default: 10; 1 where they are sent once)",
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
    if folder.settings.method not in SENDING:
        raise UserError(
            f"{folder.path} is a run of the method {folder.settings.method}, in which no residual "
            "is exchanged: there is nothing to attack"
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
