"""Write a deployment: the Flower app, the server's folder beside it, what clients are given."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.files import write_json, write_text, writing
from coterie.core.flower.app import write_app
from coterie.core.flower.compose import COMPOSE, CONNECTION, PROXY
from coterie.core.flower.names import CLIENTS, KEYS, PUBLIC, SERVER, SETTINGS
from coterie.core.protocol.card import Card
from coterie.core.registry.papers import Paper, load
from coterie.core.run.apart import write_folders, write_server
from coterie.core.run.simulated import shards_of
from coterie.core.settings.configuration import to_yaml
from coterie.core.settings.schema import changed
from coterie.core.settings.sections import EngineSettings

DEADLINE = 600.0
"""Seconds for an ask, where the settings name none."""
_README = """\
# {paper} across machines

An app of [Flower](https://flower.ai). It holds nobody's data: each node has its own, and both
sides have installed coterie themselves ({versions}).

- `card.json` is all that both sides must agree on. An organisation reads what would leave it, and
  makes its node, by `coterie node init card.json --data PATH --out NODE`.
- `server/` is the server's own folder, and is not sent. `server/keys.json` names the public key of
  the node of each clients' folder.
- `flwr run . lab` starts a run on the SuperLink `lab`, and goes on with one where it has
  `--run-config 'resume=true'`. `coterie deploy status .` says how it goes.
- `coterie deploy up . --local {count}` tries all of it on one machine, with the data set that it
  was cut from, in `clients/`.
- `compose.yaml` and `proxy.conf` run a SuperLink of which only what nodes need is published.
"""


def write_deployment(paper: Paper, settings: Any, folder: Path, nodes: int) -> list[Path]:
    """Take a data set apart for so many nodes, and write all that a server needs.

    Args:
        paper: to deploy.
        settings: of the run, with ``engine.name`` flower.
        folder: new.
        nodes: how many there are.

    Returns:
        The folders of the clients, one each in the list form, in which a node may have several.

    Raises:
        UserError: the folder is there already, or cannot be written; nothing is left behind.
    """
    if folder.exists():
        raise UserError(f"{folder} is there already: choose another --out")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}-partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        names = _write(paper, settings, partial, nodes)
        with writing(folder):
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [folder / CLIENTS / name for name in names]


def _write(paper: Paper, settings: Any, folder: Path, nodes: int) -> list[str]:
    inside = in_process(settings)
    experiment = load(paper.experiment)(inside)
    whole = experiment.federation()
    shards = shards_of(whole, nodes)
    folders = write_folders(experiment, whole, folder / CLIENTS, shards)
    names = [one.name for one in folders]
    server = folder / SERVER
    write_server(experiment, whole, server, dict(zip(names, shards, strict=True)))
    chosen = changed(experiment.settings, {"engine.name": "flower"} | _elsewhere(settings))
    write_text(server / SETTINGS, to_yaml(chosen, paper.name))
    write_json(server / KEYS, {})
    with writing(folder):
        (folder / PUBLIC).mkdir(parents=True)
        for name, path in experiment.public_files().items():
            shutil.copy(path, folder / PUBLIC / name)
    card = Card.from_json((server / "card.json").read_text())
    versions = ", ".join(f"{name} {version}" for name, version in card.versions.items())
    write_app(folder, card, _README.format(paper=paper.name, versions=versions, count=nodes))
    write_text(folder / "compose.yaml", COMPOSE)
    write_text(folder / "proxy.conf", PROXY)
    (folder / "flower").mkdir()
    write_text(folder / "flower" / "config.toml", CONNECTION)
    return names


def _elsewhere(settings: Any) -> dict[str, Any]:
    """The engine's settings that are of nodes."""
    engine: EngineSettings = settings.engine
    return {
        "engine.deadline": engine.deadline or DEADLINE,
        "engine.start": engine.start,
        "engine.min_clients": engine.min_clients,
        "engine.patience": engine.patience,
    }


def in_process(settings: Any) -> Any:
    """The same settings with all clients in this process, which takes them apart."""
    fresh = EngineSettings()
    names = ("name", "deadline", "start", "min_clients", "patience")
    engine = replace(settings.engine, **{name: getattr(fresh, name) for name in names})
    return replace(settings, engine=engine)
