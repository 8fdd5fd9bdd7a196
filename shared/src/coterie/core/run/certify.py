"""Do engines give the same bits? Digests after every round of a run, for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.folder import kept_state
from coterie.core.engines.nodes import Nodes
from coterie.core.engines.processes import WorkerProcesses
from coterie.core.engines.ray_actors import RayActors
from coterie.core.federation.collected import joined
from coterie.core.federation.exchange import Answers, Request
from coterie.core.federation.federation import Federation
from coterie.core.federation.in_process import InProcess
from coterie.core.protocol.card import Card
from coterie.core.protocol.run_keys import RunKeys
from coterie.core.run.apart import expected, federation_of, write_folders, write_server
from coterie.core.run.driver import FederatedRun, computing_as
from coterie.core.run.experiment import Experiment
from coterie.core.run.simulated import shards_of
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors.saved import digest

PARTS = ("server", "clients", "journal", "ledger")
RUN = "certificate"
"""Name of the run."""
_NOT_SENT = "cost/local_steps"  # counted where they are made


@dataclass
class InShards(InProcess):
    """Clients in one process that answer in given groups: the reference of other engines.

    A group answers as a process of its own does, uploads folded before they leave it.

    Attributes:
        shards: ids of the clients of each group.
    """

    folds = True
    shards: Sequence[Tensor] = field(default=())

    def ask(self, request: Request) -> Iterator[Answers]:
        """Let clients answer, group by group.

        Raises:
            TypeError: the clients have no such step.
        """
        if request.fold is not None and request.fold.to_plain() is None:  # it has no name
            request = replace(request, fold=None)
        for shard in self.shards:
            ids = request.ids[torch.isin(request.ids, shard)]
            if ids.numel():
                parts = list(super().ask(replace(request, ids=ids)))
                yield from parts if self.is_list else [joined(request, parts)]


@dataclass(frozen=True)
class Digests:
    """What a round left behind, by an engine.

    Attributes:
        engine: its name.
        block: of the round.
        round: over all blocks.
        parts: SHA-256 of each of `PARTS`: the server's state, the private states of all clients,
            what the round measured, and the bytes that crossed so far.
    """

    engine: str
    block: int
    round: int
    parts: dict[str, str]


@dataclass(frozen=True)
class Apart:
    """An experiment as folders, of its clients and of its server.

    Attributes:
        root: of all of them.
        clients: folders of clients.
        shards: ids of the clients of each.
    """

    root: Path
    clients: list[Path]
    shards: list[Tensor]

    @staticmethod
    def written(experiment: Experiment[Any], whole: Federation, root: Path, count: int) -> Apart:
        """Take an experiment apart for so many processes."""
        shards = shards_of(whole, count)
        folders = write_folders(experiment, whole, root / "clients", shards)
        names = {one.name: shard for one, shard in zip(folders, shards, strict=True)}
        write_server(experiment, whole, root / "server", names)
        return Apart(root, folders, shards)

    @property
    def server(self) -> Path:
        """Folder of the server."""
        return self.root / "server"

    @property
    def known(self) -> dict[str, Any]:
        """What the server knows of its nodes, for `coterie.core.engines.nodes.Nodes`."""
        card = Card.from_json((self.server / "card.json").read_text())
        return {"expected": expected(self.server), "card": card}

    def over(self, exchange: Nodes) -> FederatedRun:
        """The run, as the server makes it of the card and its own folder."""
        return FederatedRun(federation_of(self.known["card"], self.server, exchange))


Engine = tuple[Apart, Callable[[Apart], Nodes]]
"""Folders of its own, and what reaches the clients in them."""


def processes(count: int) -> Callable[[Apart], Nodes]:
    """So many processes of this machine."""

    def made(apart: Apart) -> Nodes:
        return WorkerProcesses(apart.clients, RUN, processes=count, **apart.known)

    return made


def actors(count: int, address: str) -> Callable[[Apart], Nodes]:
    """So many actors on the Ray cluster at an address."""

    def made(apart: Apart) -> Nodes:
        return RayActors(
            apart.clients, RUN, address=address, actors=count, min_clients=1.0, **apart.known
        )

    return made


def certify(
    whole: Federation, shards: Sequence[Tensor], engines: Mapping[str, Engine]
) -> Iterator[list[Digests]]:
    """Run a federation by every engine, a round at a time, and digest what each leaves behind.

    Args:
        whole: with all clients in this process.
        shards: groups in which they are elsewhere.
        engines: others, by name. Server and clients are made from the card and their own folders
            alone.

    Yields:
        For each round, the digests of one process and of every other engine.
    """
    inside = FederatedRun(replace(whole, exchange=in_shards(whole, shards)))
    with ExitStack() as held:
        # As the processes do: folders say one thread, and more may round differently.
        kernels = (whole.settings or {}).get("engine.kernels", "auto")
        held.enter_context(computing_as(EngineSettings(threads=1, kernels=kernels)))
        others = {
            name: (held.enter_context(make(apart)), apart)
            for name, (apart, make) in engines.items()
        }
        runs = {name: apart.over(exchange) for name, (exchange, apart) in others.items()}
        while not inside.finished:
            inside.advance()
            found = [_digests("in-process", inside, lambda: inside.clients)]
            for name, run in runs.items():
                run.advance()
                folders = others[name][1].clients
                kept = partial(_gathered, whole, run, folders)
                found.append(_digests(name, run, kept))
            yield found


def in_shards(whole: Federation, shards: Sequence[Tensor]) -> InShards:
    """The clients of a federation in this process, in groups."""
    secrets = RunKeys(whole.seed).clients.fold
    assert whole.client is not None
    return InShards(
        whole.client, whole.blocks, secrets, None, whole.middleware, whole.bounds, shards=shards
    )


def _gathered(whole: Federation, run: FederatedRun, folders: Sequence[Path]) -> InProcess:
    """The private states that the server has heard of, out of the clients' folders."""
    found = FederatedRun(whole).clients
    heard = run.exchange.to_plain()["heard"]
    states = [kept_state(folder, heard[folder.name]) for folder in folders]
    found.load_plain({"parts": [state for state in states if state is not None]})
    return found


def _digests(engine: str, run: FederatedRun, clients: Callable[[], InProcess]) -> Digests:
    journal = run.journal
    scalars = {n: v for n, v in sorted(journal.scalars.items()) if n != _NOT_SENT}
    measured = {name: list(pair) for name, pair in sorted(journal.clients.items())}
    parts = (
        run.server_state,
        states_of(clients()),
        {"scalars": scalars, "clients": measured},
        run.ledger.rows(),
    )
    return Digests(engine, run.block, run.round, dict(zip(PARTS, map(digest, parts), strict=True)))


def states_of(clients: InProcess) -> list[Any]:
    """Private states, in the order of ids."""
    ids = clients.store.ids()
    return [clients.store.take(part) for part in (ids.split(1) if clients.is_list else [ids])]
