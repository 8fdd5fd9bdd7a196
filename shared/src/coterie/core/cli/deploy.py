"""``coterie deploy``: what the coordinator does who trains across machines."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    positive,
    print_json,
    print_rows,
    tell,
)
from coterie.core.errors import UserError
from coterie.core.files import writing
from coterie.core.flower.names import CLIENTS, SERVER, STATUS, TRIAL
from coterie.core.flower.programs import check_installed
from coterie.core.flower.supervisor import alive
from coterie.core.flower.trial import Trial
from coterie.core.registry.papers import heavy
from coterie.core.settings.configuration import configure

_ABOUT = (
    "Write a deployment of a paper: an app for Flower's runtime, the server's folder, and the "
    "clients of a data set, taken apart. Every setting of `coterie train PAPER` may be given too. "
    "Then: coterie deploy up DIR --local N, coterie deploy status DIR."
)
_LOOK, _ASK = 1.0, 20.0  # seconds between two looks; and between two questions to Flower
_DEAD = 15.0  # seconds without a sign of life
_OVER = ("finished", "failed", "cut short")
_STARTS = 3  # without a round that was done


def run_deploy(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    if argv[:1] == ["up"]:
        _up(argv[1:])
    elif argv[:1] == ["status"]:
        _status(argv[1:])
    else:
        _write(argv)


def _write(argv: Sequence[str]) -> None:
    parser = Arguments("deploy PAPER", _ABOUT)
    parser.add_argument("--nodes", type=positive, required=True, help="how many there are")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    paper, given, flags = parser.of_paper(argv)
    check_installed()
    settings = configure(paper, ["--engine.name", "flower", *flags]).settings
    if settings.trainer.fast_dev_run:
        raise UserError("'trainer.fast_dev_run' keeps nothing to deploy: leave it out")
    write = heavy("coterie.core.flower.deployment").write_deployment
    folders = write(paper, settings, given.out, given.nodes)
    tell(f"{given.out} is an app of Flower, with the server's folder in it")
    tell(f"{len(folders)} folders of clients are in {given.out / CLIENTS}")
    tell(f"Try it here: coterie deploy up {given.out} --local {given.nodes}")


def _up(argv: Sequence[str]) -> None:
    parser = Arguments("deploy up", "Run a deployment on this machine: SuperLink, nodes, TLS, keys")
    parser.add_argument("deployment", type=Path, metavar="DIR", help="made by coterie deploy")
    parser.add_argument("--local", type=positive, required=True, metavar="N", help="so many nodes")
    given = parser.parse_args(argv)
    check_installed()
    folder = _deployment(given.deployment)
    nodes = local_nodes(folder, given.local)
    tell(f"Starting a SuperLink and {len(nodes)} nodes on this machine; Ctrl-C ends all of them")
    with Trial(folder / TRIAL, nodes, folder / SERVER) as trial:
        state = follow(trial, folder)
    if state["state"] == "cut short":
        tell(f"The run in {state['folder']} was cut short by its trainer's settings")
        return
    if state["state"] != "finished":
        raise UserError(f"the run is {state['state']}: {state['error']}")
    run = Path(state["folder"])
    summary = json.loads((run / "summary.json").read_text())
    rows = [{"metric": name, "value": value} for name, value in summary["metrics"].items()]
    print_rows(rows, f"{run}: {summary['rounds']} rounds")


def follow(trial: Trial, folder: Path) -> Mapping[str, Any]:
    """Start the run, or go on with it, and again where its server dies; how it ended.

    Args:
        trial: that runs.
        folder: of the deployment.

    Raises:
        UserError: its server dies again and again.
    """
    shown = starts = 0
    told: set[str] = set()
    while starts < _STARTS:
        before = _written(_state(folder))
        number, asked = trial.submit(folder, {"resume": True}), time.monotonic()
        starts += 1
        while True:
            time.sleep(_LOOK)
            _tell_refusals(trial, told)
            state = _state(folder)
            if state is not None and _written(state) != before:
                if state["round"] > shown:
                    shown, starts = state["round"], 0
                    tell(_line(state))
                if state["state"] in _OVER:
                    return state
                if state["state"] == "stopped" and "stopped" in trial.state(number):
                    return state
                if state["state"] in ("stopped", "lost") or not alive(state["pid"]):
                    break
            if time.monotonic() - asked > _ASK:
                if trial.state(number).startswith("finished"):
                    break
                asked = time.monotonic()
        tell("The server's process ended: it is started again")
    log = trial.process("superlink").log
    raise UserError(f"the server's process ended {starts} times without a round: see {log}")


def _written(state: Mapping[str, Any] | None) -> tuple[int, str] | None:
    """By whom and when a status was written; clocks are not compared."""
    return None if state is None else (state["pid"], state["time"])


def _tell_refusals(trial: Trial, told: set[str]) -> None:
    """Say once of each node that has ended why it did."""
    for name, said in trial.refusals().items():
        if name not in told:
            tell(f"{name} has ended: {said}")
            told.add(name)


def _line(state: Mapping[str, Any]) -> str:
    measured = {n: v for n, v in state["metrics"].items() if n.startswith(("eval/", "test/"))}
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in list(measured.items())[:3])
    here = sum(node["here"] for node in state["nodes"])
    late = [node["node"] for node in state["nodes"] if node["late"]]
    seconds = state["metrics"].get("cost/seconds", 0.0)
    told = f", late: {', '.join(late)}" if late else ""
    return f"round {state['round']}: {seconds:.1f} s, {here} here{told}; {numbers}"


def _status(argv: Sequence[str]) -> None:
    parser = Arguments("deploy status", "Show how a deployment goes")
    parser.add_argument("deployment", type=Path, metavar="DIR", help="made by coterie deploy")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    given = parser.parse_args(argv)
    state = _state(_deployment(given.deployment))
    if state is None:
        raise UserError(
            f"no run of {given.deployment} was started yet: flwr run {given.deployment}"
        )
    seconds = (datetime.now(UTC) - datetime.fromisoformat(state["time"])).total_seconds()
    if state["state"] not in (*_OVER, "stopped", "lost") and seconds > _DEAD:
        state = {
            **state,
            "state": "no sign of life",
            "error": "its process has ended, or the disk "
            "is full: go on by --run-config 'resume=true'",
        }
    if given.json:
        print_json(state)
        return
    tell(f"{state['paper']}, {state['run']}: {state['state']}, round {state['round']}")
    if state["error"]:
        tell(state["error"], "Error: ")
    print_rows(state["nodes"])
    if state["refused"]:
        print_rows(state["refused"], "The newest refusals")


def _state(folder: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((folder / SERVER / STATUS).read_text())
        return found
    return None


def _deployment(folder: Path) -> Path:
    if not (folder / SERVER / "card.json").is_file():
        raise UserError(
            f"{folder} is no deployment: make one by coterie deploy PAPER --out {folder}"
        )
    return folder


def local_nodes(folder: Path, count: int) -> list[Path]:
    """Folders of nodes for a trial, each with some of the clients'; those that are there stay."""
    nodes = folder / TRIAL / "nodes"
    if nodes.is_dir():
        found = sorted(nodes.iterdir())
        if len(found) != count:
            raise UserError(
                f"{folder} has a trial of {len(found)} nodes: say --local {len(found)}, or remove "
                f"{folder / TRIAL}"
            )
        return found
    if not (folder / CLIENTS).is_dir():
        raise UserError(f"there are no clients in {folder / CLIENTS}: a trial needs them")
    clients = sorted((folder / CLIENTS).iterdir(), key=lambda path: (len(path.name), path.name))
    if count > len(clients):
        raise UserError(
            f"{folder} has clients for {len(clients)} nodes: say --local {len(clients)} or less, "
            "or deploy with more --nodes"
        )
    partial = folder / TRIAL / ".nodes"
    shutil.rmtree(partial, ignore_errors=True)
    with writing(folder / TRIAL):
        for place, path in enumerate(clients):
            shutil.copytree(path, partial / f"node-{place % count}" / path.name)
        partial.rename(nodes)
    return [nodes / f"node-{number}" for number in range(count)]
