"""Make the folder of a node out of the card and of data that stay where they are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.folder import ClientFolder
from coterie.core.errors import UserError
from coterie.core.files import writing
from coterie.core.flower.certificates import write_key
from coterie.core.flower.names import PUBLIC
from coterie.core.flower.node_folder import KEY
from coterie.core.protocol.card import Card
from coterie.core.protocol.edition import check_edition
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import ProtocolError, decode

_OF_A_RUN = ("own.json", "card.json", "position.json", "serving.lock", "entries")
_STATE = ("data-*", "state-*", "reply-*", "best-*")


def write_node(node: Path, card: Path, data: Path, name: str | None) -> Path:
    """Write the folder of a node: the clients' data, secrets of their own, a key.

    Args:
        node: the folder; it may have folders of other clients already.
        card: the public card; what everybody needs is beside it, in ``public/``.
        data: ``data-0.safetensors`` of one block, or a folder with one a block, as
            `coterie.core.engines.folder` describes them, and whatever else the clients need.
        name: of the clients' folder, as the server knows it; default is that of ``data``.

    Returns:
        The public key of the node, which the coordinator needs.

    Raises:
        UserError: a file is missing or does not fit the card; nothing is left behind.
    """
    files = _data_files(data)
    name = name or (data.name if data.is_dir() else data.absolute().parent.name)
    target = node / name
    if target.exists():
        raise UserError(f"{target} is there already: choose another --name or --out")
    partial = node / f".{name}-partial"
    with writing(node):
        node.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
    try:
        with writing(node):
            _copy(card.absolute().parent / PUBLIC, partial)
            if data.is_dir():
                _copy(data, partial)
        _write(partial, Card.from_json(card.read_text()), files)
        public = write_key(node / KEY)
        with writing(node):
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return public


def _write(folder: Path, card: Card, files: dict[int, Path]) -> None:
    """Write one clients' folder, once all of it was read."""
    check_edition(card)
    none = torch.empty(0, dtype=torch.int64)
    empty = ClientFolder.create(folder, card, none, None, {})
    client = empty.client()
    empty.check(client)
    blocks = {block: _read(path, client.data_type()) for block, path in files.items()}
    for block, path in files.items():
        if block >= card.blocks:
            raise UserError(f"{path} is of block {block}, and the card has {card.blocks} blocks")
    ids = torch.cat([_ids(data) for data in blocks.values()]).unique()
    ClientFolder.create(folder, card, ids, None, blocks)
    for block in blocks:
        _try(client, blocks[block], files[block])


def _try(client: Any, data: Any, path: Path) -> None:
    """Let the clients begin, so that data which do not fit the card are found here."""
    ids = _ids(data)
    try:
        client.enrol(
            data, Key.from_seed(0) if client.form == "list" else Key.from_seed(0).fold(ids)
        )
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the clients cannot begin with {path} ({type(error).__name__}: {error}): does it fit "
            "the card?"
        ) from error


def _read(path: Path, kind: Any) -> Any:
    try:
        return decode(path.read_bytes(), kind)[0]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ProtocolError as error:
        raise UserError(f"{path} does not fit the card: {error}") from error


def _ids(data: Any) -> Tensor:
    ids: Tensor = data.ids if hasattr(data, "ids") else torch.tensor([int(data.id)])
    return ids


def _data_files(data: Path) -> dict[int, Path]:
    """Block -> its file."""
    if data.is_file():
        return {0: data}
    found = {}
    for path in sorted(data.glob("data-*.safetensors")):
        number = path.stem.removeprefix("data-")
        if number.isdecimal():
            found[int(number)] = path
    if not found:
        raise UserError(
            f"there is no data-0.safetensors in {data}: name a file or folder of clients' data"
        )
    return found


def _copy(source: Path, folder: Path) -> None:
    """Copy what clients need beside their data; nobody's private state or secret."""
    for path in source.iterdir() if source.is_dir() else ():
        of_a_run = path.name in _OF_A_RUN or any(path.match(one) for one in _STATE)
        if path.is_file() and not of_a_run and not path.name.startswith("."):
            shutil.copy(path, folder / path.name)
