"""A simulated federation in processes of this machine, each client's folder below the run's.

The clients' data, secrets and private state are in their folders, none of it in the checkpoint. A
checkpoint says which parcel the server has heard last of each folder; a resumed run, and whatever
looks into one, goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.cut import cut_those_missing
from coterie.core.engines.folder import ClientFolder, kept_state
from coterie.core.engines.processes import WorkerProcesses
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation, bounds
from coterie.core.files import write_json, writing
from coterie.core.protocol.card import Card
from coterie.core.run.apart import bound_card, write_folder
from coterie.core.run.checkpoint import LAST, read_checkpoint
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Experiment
from coterie.core.settings.sections import EngineSettings

CLIENTS = "clients"
"""Folder of the clients' folders, in that of the run."""
_SERVER = "server.json"  # which run it is, and how often its server was started
_DEALT = "dealt.json"  # among how many processes the clients were dealt


@contextmanager
def in_processes(
    experiment: Experiment[Any], federation: Federation, folder: Path
) -> Iterator[Federation]:
    """Put the clients of a federation into processes, which end with the block.

    Args:
        experiment: of the run.
        federation: of the experiment.
        folder: of the run. Clients that have folders in it go on from them.

    Raises:
        UserError: the folders are of other data or settings, or cannot be written.
    """
    engine: EngineSettings = experiment.settings.engine
    root = folder / CLIENTS
    ids = dealt(federation, root, count(engine, clients_of(federation)))
    card = bound_card(experiment, federation)

    def cut(name: str, folder: Path) -> None:
        write_folder(experiment, federation, card, folder, ids[name])

    folders = [root / name for name in ids]
    with writing(root):
        cut_those_missing(folders, cut)
    check_cards(map(ClientFolder, folders), card)
    exchange = WorkerProcesses(
        folders, processes=count(engine, len(ids)), **options(engine, root, ids)
    )
    with exchange:
        yield replace(federation, exchange=exchange)


def options(engine: EngineSettings, root: Path, expected: Mapping[str, Tensor]) -> dict[str, Any]:
    """What `coterie.core.engines.nodes.Nodes` is told of a run, whose server starts once more.

    Args:
        engine: section of the run's settings.
        root: folder of the clients' folders.
        expected: name of each -> ids of its clients.
    """
    server = _server(root) or {"run": os.urandom(8).hex(), "epoch": 0}
    server["epoch"] += 1
    write_json(root / _SERVER, server)
    return {
        **server,
        "bounds": bounds(engine),
        "deadline": engine.deadline,
        "start": engine.start,
        "min_clients": engine.min_clients,
        "patience": engine.patience,
        "expected": expected,
    }


def count(engine: EngineSettings, most: int, cores: int | None = None) -> int:
    """How many processes there are, at most one for each folder; by default one a core."""
    return max(1, min(engine.processes or cores or len(os.sched_getaffinity(0)), most))


def shards_of(federation: Federation, processes: int) -> list[Tensor]:
    """Deal the clients to folders, each ascending: one a client in the list form.

    Where they are stacked, each process gets about the same work, over all blocks.
    """
    client = federation.client
    assert client is not None
    ids = torch.cat([data.ids for data in federation.blocks])
    everybody, places = ids.unique(return_inverse=True)
    if client.form == "list":
        return list(everybody.split(1))
    work = torch.zeros(everybody.numel(), dtype=torch.float64)
    each = [client.work(data) for data in federation.blocks]
    if any(one is None for one in each):
        each = [torch.ones(len(data.ids)) for data in federation.blocks]
    work.index_add_(0, places, torch.cat([one.double() for one in each if one is not None]))
    order = torch.argsort(work, descending=True, stable=True)
    # There and back: 0 1 2 2 1 0 0 1 …, so that nobody is always first.
    turn = torch.arange(order.numel()) % (2 * processes)
    dealt = torch.minimum(turn, 2 * processes - 1 - turn)
    shards = [everybody[order[dealt == number]].sort().values for number in range(processes)]
    return [shard for shard in shards if shard.numel()]


def read_run(path: Path) -> dict[str, Any]:
    """Read a checkpoint with the private state of all clients, wherever it is kept.

    Raises:
        UserError: as `coterie.core.run.checkpoint.read_checkpoint`, or the clients' folders are
            not there, or not as far as the checkpoint.
    """
    saved = read_checkpoint(path)
    run = saved["federation"]
    if isinstance(run.get("store"), dict) and "heard" in run["store"]:
        saved["federation"] = run | {"store": _gathered(run["store"], path.parent.parent)}
    return saved


def looked_into(run: FederatedRun, federation: Federation, folder: Path) -> FederatedRun:
    """Give a run with all its clients in this process, to look into them.

    It is the run itself where they are here already, or on machines of their own.

    Args:
        run: whose clients are in processes.
        federation: as it was before `in_processes`.
        folder: of the run.
    """
    if run.federation.exchange is federation.exchange:  # in this process, or on other machines
        return run
    plain = run.to_plain()
    found = FederatedRun(federation)
    found.load_plain(plain | {"store": _gathered(plain["store"], folder)})
    found.journal = run.journal
    return found


def _gathered(store: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The private states that a server has heard of, out of the folders of a run's clients."""
    if not (folder / CLIENTS).is_dir():
        raise UserError(
            f"the clients of {folder} are on other machines, and nothing of them is here: what "
            "they have measured is in its summary.json and metrics.csv"
        )
    each = [kept_state(folder / CLIENTS / name, heard) for name, heard in store["heard"].items()]
    return {"parts": [state for state in each if state is not None]}


def run_of(root: Path) -> str | None:
    """Which run has begun with the clients' folders below ``root``; None if none has.

    Raises:
        UserError: what the server knows of them is damaged.
    """
    server = _server(root)
    return None if server is None else server["run"]


def dealt(federation: Federation, root: Path, most: int) -> dict[str, Tensor]:
    """To which folders below ``root`` the clients are dealt: name -> ids.

    Args:
        federation: of the clients.
        root: folder of the clients' folders, which is made for a run that has not begun.
        most: processes among which they are dealt then.

    Raises:
        UserError: clients have private state of another run, a file is damaged or lost, or it
            cannot be written.
    """
    begun = run_of(root) is not None
    if not begun:
        _begin(root)
        write_json(root / _DEALT, most)
    try:
        shards = shards_of(federation, int(json.loads((root / _DEALT).read_text())))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{root / _DEALT} is damaged: put back a copy of it") from error
    ids = {f"clients-{number}": shard for number, shard in enumerate(shards)}
    lost = next((root / name for name in ids if not (root / name).is_dir()), None)
    if begun and lost is not None and (root.parent / "checkpoints" / LAST).is_file():
        raise UserError(
            f"{lost} is missing, and its clients had private state: put back a copy of it, or "
            "start a new run with another --run.name"
        )
    return ids


def _begin(root: Path) -> None:
    """Make room for the clients' folders; what was left of an earlier attempt goes.

    Raises:
        UserError: clients have private state there already, or it cannot be written.
    """
    if any(root.glob("*/position.json")):
        raise UserError(
            f"{root / _SERVER} is missing, and the clients have private state: put back a copy of "
            "it, or start a new run with another --run.name"
        )
    with writing(root):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)


def clients_of(federation: Federation) -> int:
    """How many clients there are, over all blocks."""
    return int(torch.cat([data.ids for data in federation.blocks]).unique().numel())


def folders_of(root: Path) -> list[Path]:
    """The clients' folders below ``root``, in the order of their numbers."""
    found = [path for path in root.glob("clients-*") if path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("clients-")))


def _server(root: Path) -> dict[str, Any] | None:
    path = root / _SERVER
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return {"run": str(found["run"]), "epoch": int(found["epoch"])}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: put back a copy of it") from error


def check_cards(known: Iterable[ClientFolder], card: Card) -> None:
    """Check that clients' folders were written from the same data by the same settings.

    Raises:
        UserError: one was not.
    """
    same = Card.from_json(card.to_json())
    for one in known:
        if one.card != same:
            raise UserError(
                f"the clients of {one.path.parents[1]} were written from other data, settings or "
                "versions: start a new run with another --run.name"
            )
