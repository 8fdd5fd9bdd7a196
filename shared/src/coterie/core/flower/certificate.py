"""Do SuperNodes give the bits of one process, and of processes? All three in one ServerApp.

So they go a round at a time, and what each leaves behind can be compared: the nodes are on this
machine, and keep no more than a round that may be taken back.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from coterie.core.errors import UserError
from coterie.core.files import write_text
from coterie.core.flower.app import write_app
from coterie.core.flower.courier import FlowerNodes
from coterie.core.flower.keys import known_keys
from coterie.core.flower.names import VARIABLE
from coterie.core.flower.trial import Trial
from coterie.core.registry.papers import Paper, find_paper, load
from coterie.core.run.certify import RUN, Apart, certify, processes
from coterie.core.settings.configuration import read_config, to_yaml
from coterie.core.settings.schema import build

_ROWS, _SETTINGS, _FAILED = "rows.jsonl", "settings.yaml", "failed.txt"
_LOOK, _ASK = 0.2, 30.0  # seconds between two looks; and between two questions to Flower
DEADLINE = 600.0
"""Seconds for an ask: nobody is to be left out."""


def certified(
    paper: Paper, settings: Any, folder: Path, count: int
) -> Iterator[list[dict[str, Any]]]:
    """Digests of every round, by one process, processes and SuperNodes.

    Args:
        paper: to run.
        settings: of the run.
        folder: where all of it is written; empty.
        count: of SuperNodes, and of processes.

    Raises:
        UserError: the run did not come to its end.
    """
    experiment = load(paper.experiment)(settings)
    apart = Apart.written(experiment, experiment.federation(), folder / "supernodes", count)
    nodes = [folder / "nodes" / f"node-{number}" for number in range(count)]
    for place, clients in enumerate(apart.clients):
        node = nodes[place % count]
        node.mkdir(parents=True, exist_ok=True)
        clients.rename(node / clients.name)
    used = [node for node in nodes if node.exists()]
    write_text(folder / _SETTINGS, to_yaml(experiment.settings, paper.name))
    write_app(folder / "app", apart.known["card"], "A certificate.\n", module=__name__)
    with Trial(folder / "trial", used, apart.server) as trial:
        number = trial.submit(folder / "app")
        yield from _rows(trial, number, folder)


def _rows(trial: Trial, number: str, folder: Path) -> Iterator[list[dict[str, Any]]]:
    path, seen, over, asked = folder / _ROWS, 0, False, time.monotonic()
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines[seen:]:
            found = json.loads(line)
            if not found:
                return
            yield found
        seen = len(lines)
        if over:
            why = folder / _FAILED
            dead = f"run {number} of Flower ended before it had compared all rounds"
            raise UserError(why.read_text() if why.exists() else dead)
        time.sleep(_LOOK)
        over = (folder / _FAILED).exists()
        if time.monotonic() - asked > _ASK:
            over |= trial.state(number).startswith("finished")
            asked = time.monotonic()


def serve(grid: Grid, context: Context) -> None:
    """What the ServerApp of a certificate does."""
    folder = Path(os.environ[VARIABLE]).parents[1]
    try:
        with (folder / _ROWS).open("a", encoding="utf-8") as file:
            for row in _compared(grid, folder):
                file.write(json.dumps(row) + "\n")
                file.flush()
            file.write("[]\n")
    except BaseException as error:
        write_text(folder / _FAILED, f"{type(error).__name__}: {error}")
        raise


def _compared(grid: Grid, folder: Path) -> Iterator[list[dict[str, Any]]]:
    paper = find_paper(json.loads((folder / "supernodes/server/card.json").read_text())["paper"])
    values = read_config(folder / _SETTINGS, load(paper.settings), paper.name).values
    experiment = load(paper.experiment)(build(load(paper.settings), values))
    whole, keys = experiment.federation(), known_keys(folder / "supernodes" / "server")
    count = len({node for node in (folder / "nodes").iterdir() if node.is_dir()})
    inside = Apart.written(experiment, whole, folder / "processes", count)
    where = {path.parent.name: path.parent for path in (folder / "nodes").glob("*/*/own.json")}
    names = [one.name for one in inside.clients]
    outside = Apart(folder / "supernodes", [where[name] for name in names], inside.shards)

    def nodes(apart: Apart) -> FlowerNodes:
        ordered = {name: keys[name] for name in names}
        return FlowerNodes(grid, ordered, RUN, deadline=DEADLINE, **apart.known)

    engines = {"processes": (inside, processes(count)), "supernodes": (outside, nodes)}
    for digests in certify(whole, inside.shards, engines):
        yield [vars(one) for one in digests]
