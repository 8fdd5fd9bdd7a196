"""Clients behind bytes, in this process: what worker processes do, without their start."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.host import ClientHost
from coterie.core.engines.nodes import Nodes
from coterie.core.engines.worker import Service
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.federation import Federation
from coterie.core.federation.ledger import Ledger
from coterie.core.protocol.card import Card
from coterie.core.protocol.client import Client
from coterie.core.protocol.journal import Journal
from coterie.core.run.apart import federation_of, write_folders, write_server
from coterie.core.run.certify import InShards
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


class Here:
    """A node that is no process of its own."""

    def __init__(self, folder: Path, client: Client[Any, Any] | None = None) -> None:
        self.folder, self.client, self.name = folder, client, folder.name
        self.restart()

    def restart(self) -> None:
        """Go on from what is kept, as a new process does."""
        self.service = Service(self.folder, self.client)

    def give_up(self) -> None:
        self.restart()

    def close(self) -> None: ...

    @property
    def host(self) -> ClientHost:
        return self.service.host()

    def ask(self, parcel: bytes, seconds: float | None) -> bytes | None:
        return self.service.answer(parcel)


class Hosts(Nodes):
    """Worker processes, but for the processes."""

    def __init__(self, folders: Sequence[Path], client: Any = None, **options: Any) -> None:
        self.hosts = [Here(folder, client) for folder in folders]
        super().__init__(self.hosts, **{"run": "a run", **options})
        self._threads = ThreadPoolExecutor(1)  # they may have one client half together


def make_folders(
    root: Path,
    blocks: Mapping[int, Any],
    secret: Key,
    shards: Sequence[Tensor],
    card: Card = Card("toy"),  # noqa: B008, RUF100
    **options: Any,
) -> list[Path]:
    """A folder for each group of clients, with their part of the data of each block."""
    paths = []
    for number, shard in enumerate(shards):
        own = {}
        for block, data in blocks.items():
            places = torch.isin(data.ids, shard).nonzero().flatten()
            if places.numel():
                one = not hasattr(data, "take") or isinstance(options.get("form"), str)
                own[block] = data[int(places)] if one else data.take(places)
        settings = {name: value for name, value in options.items() if name != "form"}
        path = root / f"clients-{number}"
        ClientFolder.create(path, card, shard, secret.fold(shard), own, **settings)
        paths.append(path)
    return paths


@dataclass(frozen=True)
class TakenApart:
    """An experiment as folders: of its clients, and of a server that has nobody's data."""

    folders: list[Path]
    server: Path
    card: Card
    expected: dict[str, Tensor]

    @staticmethod
    def of(
        experiment: Any, root: Path, shards: Sequence[Tensor], whole: Federation | None = None
    ) -> TakenApart:
        """Take an experiment apart, or its federation, which not every one can make twice."""
        whole = whole or experiment.federation()
        folders = write_folders(experiment, whole, root / "clients", shards)
        names = {folder.name: shard for folder, shard in zip(folders, shards, strict=True)}
        write_server(experiment, whole, root / "server", names)
        card = Card.from_json((root / "server" / "card.json").read_text())
        return TakenApart(folders, root / "server", card, names)

    def copied(self, root: Path) -> TakenApart:
        """The same folders elsewhere."""
        shutil.copytree(self.server.parent, root)
        folders = [root / "clients" / folder.name for folder in self.folders]
        return replace(self, folders=folders, server=root / "server")

    @property
    def known(self) -> dict[str, Any]:
        """What the server knows of its nodes."""
        return {"expected": self.expected, "card": self.card}

    def over(self, exchange: Nodes) -> FederatedRun:
        """The run, as the server makes it."""
        return FederatedRun(federation_of(self.card, self.server, exchange))


def each_alone(ids: Tensor) -> list[Tensor]:
    """A group of its own for each client."""
    return list(ids.split(1))


def bits(value: Any) -> dict[str, bytes]:
    """All tensors of a tree, bit for bit, changes of rows as they travel."""
    found = {}
    for path, leaf in tree.values({"": value}):
        leaf = leaf.wire() if hasattr(leaf, "wire") else leaf
        for name, tensor in tree.tensors({path: leaf}):
            found[name] = (
                bytes(tensor.contiguous().view(-1).numpy().tobytes())
                + str((tensor.dtype, tuple(tensor.shape))).encode()
            )
    return found


def same_both_ways(tmp_path, client, data, asks, secret, shards=None, **options) -> None:
    """Asks give the same bits in one process and behind bytes; so do private states, at the end.

    Args:
        data: of the clients, or block -> theirs.
        asks: ``(step name, down)`` or ``(step name, down, block)`` each, in rounds of their own.
        shards: groups of clients in a folder each; by default each client alone.
    """
    blocks = data if isinstance(data, dict) else {0: data}
    shards = each_alone(blocks[0].ids) if shards is None else shards
    inside = InShards(client, blocks, secret.fold, shards=shards)
    form = {"form": "list"} if client.form == "list" else {}
    folders = make_folders(tmp_path, blocks, secret, shards, **form, **options)
    outside = Hosts(folders, client)
    for number, (step, down, *rest) in enumerate(asks):
        found, when = [], (rest[0] if rest else 0, number)
        for exchange in (inside, outside):
            ids = exchange.present(when[0])
            cohort = ExchangeCohort(exchange, ids, when, Ledger(), Journal())
            cohort.enrol()
            found.append((cohort.ask(client.steps()[step], down), cohort.ledger.rows()))
        (one, ledger), (other, other_ledger) = found
        assert one.ids.tolist() == other.ids.tolist()
        assert one.failed == other.failed
        assert bits(_uploads(one)) == bits(_uploads(other))
        assert ledger == other_ledger
    for host, shard in zip(outside.hosts, shards, strict=True):
        kept = ClientHost(host.folder, client).exchange.store
        assert bits(kept.take(shard)) == bits(inside.store.take(shard))


def _uploads(replies: Any) -> Any:
    ups = getattr(replies, "ups", None)
    return replies.up if ups is None else {str(client): up for client, up in ups.items()}
