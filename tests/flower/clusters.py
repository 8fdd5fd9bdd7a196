"""Deployments in real processes on this machine, struck at a chosen moment; what they leave."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.cli.deploy import follow, local_nodes
from coterie.core.cli.main import main
from coterie.core.engines.folder import kept_state
from coterie.core.flower.requests import Asked, noted
from coterie.core.flower.supervisor import alive
from coterie.core.flower.trial import Trial
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.certify import in_shards, states_of
from coterie.core.run.checkpoint import read_checkpoint
from coterie.core.run.driver import FederatedRun
from coterie.core.run.simulated import shards_of
from coterie.core.settings.configuration import configure
from coterie.core.tensors.saved import digest

PROGRAMS = {
    "ServerApp": "flwr-serverapp",
    "SuperLink": "flower-superlink",
    "SuperNode": "flower-supernode",
    "worker": "coterie.core.flower.resident",
}
NODES = 2
SMALL = ["--preset", "smoke", "--logger.wandb", "off"]
SHORT = ["f3crec", "--rounds", "1", "--participation", "0.5", "--model.dim", "4"]
SHORT += ["--data.fractions", "[0.8]"]
"""A run of two rounds, over the end of a block."""


def deployed(root: Path, words: list[str]) -> list[Path]:
    """A deployment at ``root``; the folders of its nodes."""
    assert main(["deploy", *words, *SMALL, "--nodes", str(NODES), "--out", str(root)]) == 0
    return local_nodes(root, NODES)


def processes(name: str, root: Path) -> list[int]:
    """Numbers of the processes of a deployment that run a program, the oldest first."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace")
            around = (path / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        is_one = PROGRAMS[name] in words and "flower.bound" not in words
        if is_one and str(root) in words + around and alive(int(path.name)):
            found.append(int(path.name))
    return sorted(found)


def kill(name: str, root: Path) -> None:
    """``kill -9``, of the first node's where there are several."""
    (first, *others) = processes(name, root)
    for number in [first] if others and name in ("SuperNode", "worker") else [first, *others]:
        os.kill(number, signal.SIGKILL)


def requests(nodes: list[Path]) -> list[Asked]:
    return [line for node in nodes for line in noted(node)]


@contextmanager
def when(condition: Callable[[], bool], then: Callable[[], None]) -> Iterator[list[float]]:
    """Do something once, when a condition holds; says when that was."""
    over, done = threading.Event(), []

    def watch() -> None:
        while not over.wait(0.02):
            if condition():
                then()
                done.append(time.monotonic())
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def ended(root: Path, nodes: list[Path], **then: Any) -> Mapping[str, Any]:
    """The state of a deployment at its end."""
    with Trial(root / "trial", nodes, root / "server", **then) as trial:
        return follow(trial, root)


def bits(root: Path, state: Mapping[str, Any]) -> dict[str, str]:
    """Digests of what a run has left behind."""
    saved = read_checkpoint(Path(state["folder"]) / "checkpoints" / "last.ckpt")["federation"]
    folders = {path.parent.name: path.parent for path in root.glob("trial/nodes/*/*/own.json")}
    heard = saved["store"]["heard"]
    whole = reference(root)
    parts = [kept_state(folders[name], heard[name]) for name in sorted(heard)]
    inside = FederatedRun(whole).clients
    inside.load_plain({"parts": [part for part in parts if part is not None]})
    return {
        "server": digest(saved["server"]),
        "clients": digest(states_of(inside)),
        "ledger": digest(saved["ledger"]),
        "results": digest(sorted(saved["results"].items())),
    }


def reference(root: Path) -> Any:
    """The federation of a deployment, in one process."""
    from coterie.core.flower.deployment import in_process

    paper, settings = _settings(root)
    return load(paper.experiment)(in_process(settings)).federation()


def _settings(root: Path) -> tuple[Any, Any]:
    import json

    name = json.loads((root / "card.json").read_text())["paper"]
    paper = find_paper(name)
    return paper, configure(paper, ["--config", str(root / "server" / "config.yaml")]).settings


def undisturbed(root: Path) -> dict[str, str]:
    """The same of a run in one process, of the same groups."""
    whole = reference(root)
    run = FederatedRun(replace(whole, exchange=in_shards(whole, shards_of(whole, NODES))))
    while not run.finished:
        run.advance()
    plain = run.to_plain()
    return {
        "server": digest(plain["server"]),
        "clients": digest(states_of(run.clients)),
        "ledger": digest(plain["ledger"]),
        "results": digest(sorted(run.results.items())),
    }
