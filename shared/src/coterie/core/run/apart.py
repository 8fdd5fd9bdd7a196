"""A simulated federation taken apart: a folder for each group of clients, one for the server."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from coterie.core.engines.folder import ClientFolder
from coterie.core.federation.federation import Federation, check_constants
from coterie.core.protocol.card import Card
from coterie.core.protocol.server import Server
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.checkpoint import bound_to
from coterie.core.run.experiment import Experiment
from coterie.core.tensors.keys import Key
from coterie.core.tensors.saved import digest

_CARDS: WeakKeyDictionary[Experiment[Any], Card] = WeakKeyDictionary()
"""Of experiments that were taken apart: not every one can make its federation twice."""


def write_folders(experiment: Experiment[Any], root: Path, shards: Sequence[Tensor]) -> list[Path]:
    """Write the folders of all clients, each with the data and keys of its own clients only.

    The keys are those that a run of the experiment in one process derives from its seed, so a run
    over the folders gives what that one gives; real clients draw their own. What clients share with
    one another but not with the server is in all folders. ``shards`` are the ids
    of the clients of each folder below ``root``, one client each in the list form.
    """
    federation = experiment.federation()
    card = _CARDS[experiment] = bound_card(experiment, federation)
    secrets, paths = Key.from_seed(federation.seed).fold("clients"), []
    for number, shard in enumerate(shards):
        blocks = {
            block: own
            for block, data in enumerate(federation.blocks)
            if (own := _own(data, shard, federation.client.form == "list")) is not None
        }
        path = root / f"clients-{number}"
        ClientFolder.create(path, card, shard, secrets.fold(shard), blocks)
        if federation.client.secret is not None:
            federation.client.secret.write(path)
        experiment.client_files(path, shard)
        _copy(experiment, path)
        paths.append(path)
    return paths


def write_server(experiment: Experiment[Any], folder: Path) -> None:
    """Write the server's folder: the card, and what the server holds itself."""
    folder.mkdir(parents=True, exist_ok=True)
    card = _CARDS.get(experiment) or bound_card(experiment, experiment.federation())
    (folder / "card.json").write_text(card.to_json())
    _copy(experiment, folder)
    experiment.server_files(folder)


def bound_card(experiment: Experiment[Any], federation: Federation) -> Card:
    """The card of an experiment, with digests of its data and constants.

    That of the data is made with the clients' secret: the card is public, and who knew all rows but
    one could try by a bare digest which it is.
    """
    bound = bound_to(federation)
    secret = Key.from_seed(federation.seed).fold("clients").state
    data = digest([secret, bound["data"], bound["ids"]])
    return replace(experiment.card, data=data, constants=dict(federation.client.constants()))


def make_server(experiment: Experiment[Any], ids: Tensor, folder: Path) -> Server[Any]:
    """Make the server half over the clients ``ids`` as a server does that has nobody's data.

    It has the card and the folder that `write_server` wrote.
    """
    half = find_paper(experiment.card.paper).server_half
    assert half is not None
    written = folder / "card.json"
    card = Card.from_json(written.read_text()) if written.is_file() else experiment.card
    server: Server[Any] = load(half)(experiment.card, ids, folder)
    if card.constants and (theirs := server.constants()):
        check_constants(theirs, card.constants)
    return server


def _own(data: Any, shard: Tensor, is_list: bool) -> Any:
    """The part of a block that some clients hold; None where they take no part in it."""
    places = torch.isin(data.ids, shard).nonzero().flatten()
    if not places.numel():
        return None
    return data[int(places)] if is_list else data.take(places)


def _copy(experiment: Experiment[Any], folder: Path) -> None:
    for name, path in experiment.public_files().items():
        shutil.copy(path, folder / name)
