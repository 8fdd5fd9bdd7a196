"""The ServerApp: a run from the card and the server's own folder, under the same Trainer as ever.

One at a time, and every start has a number of its own: Flower starts a second one beside a living
first. Nodes refuse what an earlier start sends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from coterie.core.engines.serving import serving
from coterie.core.errors import UserError
from coterie.core.federation.federation import bounds
from coterie.core.files import write_json
from coterie.core.flower.courier import FlowerNodes
from coterie.core.flower.keys import known_keys
from coterie.core.flower.names import RUN, RUNS, SETTINGS, STATUS, VARIABLE
from coterie.core.flower.status import Status, telling
from coterie.core.protocol.card import Card
from coterie.core.registry.papers import find_paper, heavy, load
from coterie.core.run.apart import SECRET, expected, write_secret
from coterie.core.run.deployed import Deployed
from coterie.core.run.driver import computing_as
from coterie.core.run.lasting import differing, fixed
from coterie.core.settings.configuration import read_config
from coterie.core.settings.schema import build, changed, values_of


def serve(grid: Grid, context: Context) -> None:
    """Run what the server's folder says; what ``flwr run`` calls.

    Raises:
        UserError: the folder is not complete, a run in it is unfinished and not to be gone on
            with, another ServerApp is at it; or as `coterie.core.training.train.train`.
    """
    config = context.run_config
    folder = server_folder(config)
    with serving(folder):
        with telling(folder / STATUS):
            ready = _prepared(folder, bool(config.get("resume", False)))
            exchange = ready.exchange(grid)
        ready.train(exchange)


def server_folder(config: Mapping[str, Any]) -> Path:
    """The server's folder, by the run's configuration or the SuperLink's environment.

    Raises:
        UserError: neither names one that is there.
    """
    named = str(config.get("server") or os.environ.get(VARIABLE, ""))
    if not named:
        raise UserError(
            f"the server's folder is not known: start the SuperLink with {VARIABLE}=FOLDER, or the "
            "run with --run-config 'server=\"FOLDER\"'"
        )
    folder = Path(named).expanduser()
    if not (folder / "card.json").is_file():
        raise UserError(f"{folder} is no folder of a server: make one by coterie deploy")
    return folder


@dataclass(frozen=True)
class _Start:
    """Which run it is, and how often its server was started.

    Attributes:
        run: its name for the nodes, whose private state is of one run.
        number: of the run in the server's folder.
        epoch: of the start.
    """

    run: str
    number: int
    epoch: int

    @property
    def name(self) -> str:
        """Of the run's folder."""
        return f"run-{self.number}"


@dataclass(frozen=True)
class _Ready:
    """A run of which all is known but how it goes.

    Attributes:
        folder: of the server.
        card: the public card.
        settings: of the run.
        keys: name of a clients' folder -> public key of its node.
        start: of the run.
    """

    folder: Path
    card: Card
    settings: Any
    keys: Mapping[str, bytes]
    start: _Start

    def train(self, exchange: FlowerNodes) -> None:
        """Run it, and say how it goes."""
        facts = {"paper": self.card.paper, "run": self.start.name, "epoch": self.start.epoch}
        shown = Status(self.folder / STATUS, exchange, facts)
        with exchange, shown as status, computing_as(self.settings.engine):
            experiment = Deployed(self.settings, self.card, self.folder, exchange)
            train = heavy("coterie.core.training.train").train_experiment
            train(find_paper(self.card.paper), experiment, callbacks=[status])

    def exchange(self, grid: Grid) -> FlowerNodes:
        """The nodes, as Flower reaches them."""
        engine = self.settings.engine
        return FlowerNodes(
            grid,
            self.keys,
            self.start.run,
            bounds=bounds(engine),
            deadline=engine.deadline,
            start=engine.start,
            epoch=self.start.epoch,
            min_clients=engine.min_clients,
            patience=engine.patience,
            expected=expected(self.folder),
            card=self.card,
        )


def _prepared(folder: Path, resume: bool) -> _Ready:
    card = Card.from_json((folder / "card.json").read_text())
    paper = find_paper(card.paper)
    kind, known = load(paper.settings), known_keys(folder)
    settings = build(kind, read_config(folder / SETTINGS, kind, paper.name).values)
    _check_as_card(card, settings, kind, folder / SETTINGS)
    keys = {name: known.get(name, b"") for name in expected(folder)}
    _check_keys(keys, folder)
    start = _started(folder, folder / RUNS / paper.name, resume)
    if settings.privacy.at == "server":
        _draws_in_secret(folder, start)
    made = (folder / RUNS / paper.name / start.name / "config.yaml").is_file()
    out = {"run.out": str(folder / RUNS), "run.name": start.name, "run.resume": made}
    silent = {"run.progress": False}  # nobody looks at it
    return _Ready(folder, card, changed(settings, out | silent), keys, start)


def _check_as_card(card: Card, settings: Any, kind: Any, path: Path) -> None:
    """Check that the server's settings are those of the card, by which both sides compute.

    Raises:
        UserError: one is not, that matters; names it.
    """
    own = {k: v for k, v in fixed(values_of(settings)).items() if not k.startswith("data.")}
    key = differing(values_of(card.read(kind)), own)  # the data are the clients'
    if key is not None:
        raise UserError(
            f"'{key}' in {path} is not as the card has it, which all sides go by: put it back, or "
            "deploy anew with it and give every node the new card"
        )


def _draws_in_secret(folder: Path, start: _Start) -> None:
    """Give a new run a secret that no card tells: who knew it could take the noise away.

    Raises:
        UserError: a run goes on whose secret is gone.
    """
    if start.epoch == 1:
        write_secret(folder)
    elif not (folder / SECRET).is_file():
        raise UserError(
            f"{folder / SECRET} is gone, by which the server draws its noise, so that this run "
            "cannot go on: put it back, or move the run's folder away to begin another"
        )


def _is_unfinished(run: Path) -> bool:
    return (run / "config.yaml").is_file() and not (run / "summary.json").is_file()


def _check_keys(keys: Mapping[str, bytes], folder: Path) -> None:
    """Check that each folder of clients has a node."""
    missing = next((name for name, key in keys.items() if not key), None)
    if missing is not None:
        raise UserError(
            f"no node has registered for '{missing}': put the public key that its owner sent you "
            f"into {folder / 'keys.json'}"
        )


def _started(folder: Path, runs: Path, resume: bool) -> _Start:
    """Count this start, before anything is sent.

    Raises:
        UserError: the newest run is unfinished, and is not to be gone on with.
    """
    path = folder / RUN
    start = _Start(**json.loads(path.read_text())) if path.is_file() else None
    number, goes_on = 1, False
    if start is not None:
        goes_on = (runs / start.name / "config.yaml").is_file() and resume
        number = start.number + (runs / start.name).is_dir()
        if not goes_on and _is_unfinished(runs / start.name):
            raise UserError(
                f"{runs / start.name} is unfinished: go on by --run-config 'resume=true', or move "
                "its folder away to begin another, for which nodes must forget it"
            )
    if start is None or not goes_on:
        start = _Start(os.urandom(8).hex(), number, 0)
    start = replace(start, epoch=start.epoch + 1)
    write_json(path, vars(start))
    return start
