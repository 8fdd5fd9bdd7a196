"""A federation taken apart: a folder for each group of clients, one for the server.

A server makes its federation from the public card and its own folder alone (`federation_of`); it
has nobody's data and nobody's secret. The folders themselves are written here from a simulation.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.envelope import NOBODY
from coterie.core.engines.folder import ClientFolder
from coterie.core.errors import UserError
from coterie.core.federation.aggregation import aggregation_of
from coterie.core.federation.exchange import Exchange
from coterie.core.federation.federation import Federation, bounds, check_constants
from coterie.core.files import write_bytes, write_json
from coterie.core.privacy.sum_noise import SECRET_BYTES, simulated_secret, sum_noise
from coterie.core.protocol.card import Card
from coterie.core.protocol.edition import with_edition
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.checkpoint import bound_to
from coterie.core.run.experiment import Experiment
from coterie.core.run.lasting import from_the_start
from coterie.core.settings.schema import values_of
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ordering import adjacent
from coterie.core.tensors.saved import digest

SECRET = "secret"
"""In the server's folder: what it draws noise by, and who takes part."""
EXPECTED = "expected.json"
"""In the server's folder: who is expected, and what is shown of them."""


def write_folders(
    experiment: Experiment[Any], federation: Federation, root: Path, shards: Sequence[Tensor]
) -> list[Path]:
    """Write the folders of all clients, each with the data and keys of its own clients only.

    The keys are those that a run of the experiment in one process derives from its seed, so a run
    over the folders gives what that one gives, which is what these folders are for: who knows the
    card knows the keys. Real clients draw their own (`ClientFolder.create`). What clients share
    with one another but not with the server is in all folders. ``shards`` are the ids of the
    clients of each folder below ``root``, one client each in the list form.
    """
    card = bound_card(experiment, federation)
    paths = [root / f"clients-{number}" for number in range(len(shards))]
    for path, shard in zip(paths, shards, strict=True):
        write_folder(experiment, federation, card, path, shard)
    return paths


def write_folder(
    experiment: Experiment[Any], federation: Federation, card: Card, path: Path, shard: Tensor
) -> None:
    """Write one of the folders of `write_folders`."""
    client = federation.client
    assert client is not None
    blocks = {
        block: own
        for block, data in enumerate(federation.blocks)
        if (own := _own(data, shard, client.form == "list")) is not None
    }
    secrets = Key.from_seed(federation.seed).fold("clients")
    ClientFolder.create(path, card, shard, secrets.fold(shard), blocks)
    if client.secret is not None:
        client.secret.write(path)
    experiment.client_files(path, shard)
    _copy(experiment, path)


def write_server(
    experiment: Experiment[Any],
    federation: Federation,
    folder: Path,
    shards: Mapping[str, Tensor],
) -> None:
    """Write the server's folder: the card, who is expected, and what the server holds itself.

    Args:
        experiment: that is taken apart.
        federation: of the experiment.
        folder: of the server.
        shards: name of each clients' folder -> ids of its clients.
    """
    folder.mkdir(parents=True, exist_ok=True)
    card = bound_card(experiment, federation)
    (folder / "card.json").write_text(card.to_json())
    clients = {name: _named(ids) for name, ids in shards.items()}
    columns = list(experiment.client_columns())
    write_json(folder / EXPECTED, {"clients": clients, "columns": columns})
    _copy(experiment, folder)
    experiment.server_files(folder)


def bound_card(experiment: Experiment[Any], federation: Federation) -> Card:
    """The card of an experiment, with digests of its data and constants.

    That of the data is made with the clients' secret: the card is public, and who knew all rows but
    one could try by a bare digest which it is.
    """
    client, bound = federation.client, bound_to(federation)
    assert client is not None
    secret = Key.from_seed(federation.seed).fold("clients").state
    data = digest([secret, bound["data"], bound["ids"]])
    card = replace(
        experiment.card,
        data=data,
        constants=dict(client.constants()),
        blocks=len(federation.blocks),
    )
    return with_edition(card, client.steps())


def expected(folder: Path) -> dict[str, Tensor]:
    """Who is expected, by the server's folder: name of a clients' folder -> ids of its clients.

    Raises:
        UserError: the folder does not say, or two folders would have the same client.
    """
    path = folder / EXPECTED
    try:
        plain = json.loads(path.read_text())["clients"]
        found = {name: _ids(named) for name, named in plain.items()}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{path} must name clients' folders with the ids in them") from error
    everybody = torch.cat([NOBODY, *found.values()])
    if everybody.unique().numel() < everybody.numel():
        raise UserError(f"{path} has a client in two folders: each client is in one")
    return found


def _named(ids: Tensor) -> list[int] | dict[str, int]:
    """Ids as JSON: one by one, or where they follow on one another the first and how many."""
    return {"first": int(ids[0]), "count": ids.numel()} if adjacent(ids) else ids.tolist()


def _ids(named: Any) -> Tensor:
    if isinstance(named, dict):
        ids = range(named["first"], named["first"] + named["count"])  # of whole numbers alone
        return torch.arange(ids[0], ids.stop)
    return torch.tensor(named, dtype=torch.int64)


def federation_of(card: Card, folder: Path, exchange: Exchange) -> Federation:
    """Make the federation of a server that has nobody's data and nobody's secret.

    Args:
        card: the public card.
        folder: of the server, as `write_server` wrote it.
        exchange: how the clients are reached.

    Raises:
        UserError: the paper is not installed, the folder is not complete, or what server and
            clients compute with is not the same.

    Example:
        card = Card.from_json((folder / "card.json").read_text())
        with WorkerProcesses(folders, "trial") as workers:
            run = FederatedRun(federation_of(card, folder, workers))
    """
    paper = find_paper(card.paper)
    if paper.server_half is None:
        raise UserError(f"paper '{card.paper}' has no server half that can be made from a card")
    settings: Any = card.read(load(paper.settings))
    ids = torch.cat(list(expected(folder).values())).sort().values
    server = load(paper.server_half)(card, ids, folder)
    if card.constants and (theirs := server.constants()):
        check_constants(theirs, card.constants)
    columns = json.loads((folder / EXPECTED).read_text()).get("columns", ())
    return Federation(
        server=server,
        client=None,
        blocks=[None] * card.blocks,
        seed=settings.seed,
        rounds=settings.rounds,
        bounds=bounds(settings.engine),
        aggregation=aggregation_of(settings.aggregate),
        noise=sum_noise(settings.privacy, _secret(folder, settings)),
        secret=settings.aggregate.secret,
        monitor=getattr(server, "monitor", None),
        client_columns=tuple(columns),
        settings=values_of(settings),
        exchange=exchange,
        origin=lambda: card.data,
        elsewhere=ids.numel(),
    )


def write_secret(folder: Path) -> None:
    """Write a secret of the server's own into its folder, which nobody else has."""
    write_bytes(folder / SECRET, token_bytes(SECRET_BYTES), mode=0o600)


def _secret(folder: Path, settings: Any) -> bytes:
    """The secret of the server's own, or that of a simulation where its folder has none.

    Raises:
        UserError: the file cannot be read.
    """
    path = folder / SECRET
    if not path.exists():
        return simulated_secret(from_the_start(values_of(settings)))
    try:
        found = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if len(found) != SECRET_BYTES:
        raise UserError(f"{path} is no secret of {SECRET_BYTES} bytes: move the run's folder away")
    return found


def _own(data: Any, shard: Tensor, is_list: bool) -> Any:
    """The part of a block that some clients hold; None where they take no part in it."""
    places = torch.isin(data.ids, shard).nonzero().flatten()
    if not places.numel():
        return None
    return data[int(places)] if is_list else data.take(places)


def _copy(experiment: Experiment[Any], folder: Path) -> None:
    for name, path in experiment.public_files().items():
        shutil.copy(path, folder / name)
