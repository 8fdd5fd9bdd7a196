"""What clients keep on their own machine: card, keys, data and private state.

A folder holds one client, or some that run together on one machine:

- ``card.json``: the public card (`coterie.core.protocol.card.Card`).
- ``own.json``: ``{"secrets": {"3": 42}, "threads": 1}``, each client's own key by its id, which
  nobody else knows. ``"half": "my_package.my_module:make_client"`` names the function that makes
  the client half from card and folder, in place of that of the installed paper.
- ``clients.secret``: where a method needs one, what all clients know and no server does
  (`coterie.core.protocol.common_secret.CommonSecret`).
- ``data-0.safetensors``, ``data-1.safetensors``, …: the clients' own data of each block, as
  `encode` writes them. Who has none of a block does not take part in it.
- ``position.json``: how far the clients are (`coterie.core.engines.position.Position`). It is
  written last, so it says which of the other files count.
- ``state-N.pt``, ``reply-N.safetensors``: private state after a parcel, and what was answered; of
  the newest round and of where it began.
- ``entries/``: parts of private state that only grow, each written once.

All files but the card are readable by their owner only. One process serves a folder at a time,
which ``serving.lock`` sees to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import randbits
from typing import Any

import torch
from torch import Tensor

from coterie.core.engines.position import Point, Position
from coterie.core.errors import UserError, nearest
from coterie.core.federation.federation import check_constants
from coterie.core.files import replacing, writing
from coterie.core.protocol.card import Card
from coterie.core.protocol.client import Client
from coterie.core.protocol.edition import check_messages
from coterie.core.registry.papers import find_paper, load
from coterie.core.tensors import saved
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ordering import among
from coterie.core.tensors.saved import FOLDER, clear, refer, resolve
from coterie.core.wire.codec import Header, ProtocolError, decode, encode

_OWN = {"secrets": dict, "threads": int, "half": str}


class ClientFolder:
    """The folder of one client, or of some that run together.

    Attributes:
        path: of the folder.
        card: the public card.
        ids: ``(C,)`` ascending ids of its clients.
        threads: of torch.

    Raises:
        UserError: ``card.json`` or ``own.json`` is missing or not as described.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.card = _card(path)
        own = _own(path / "own.json")
        self.threads: int = own["threads"]
        self._half: str | None = own.get("half")
        keys = sorted((int(one), key) for one, key in own["secrets"].items())
        self.ids = torch.tensor([one for one, _ in keys], dtype=torch.int64)
        self._secrets = torch.tensor([key for _, key in keys], dtype=torch.int64)

    @staticmethod
    def create(
        path: Path,
        card: Card,
        ids: Tensor,
        secrets: Key | None,
        blocks: Mapping[int, Any],
        *,
        half: str | None = None,
        threads: int = 1,
    ) -> ClientFolder:
        """Write a folder; private state that is there stays.

        Args:
            path: made if it is missing.
            card: the public card.
            ids: ``(C,)`` ascending ids of the clients.
            secrets: ``(C,)`` their own keys, of simulated clients. None for those of real ones:
                they have been drawn before, or are drawn now, by the operating system.
            blocks: block -> the clients' own data: those of its ``ids`` that are there, or in the
                list form of the one client.
            half: ``module:function`` that makes the client half, in place of the paper's.
            threads: of torch; more than one may round differently.
        """
        path.mkdir(parents=True, exist_ok=True)
        keys = _drawn(path, ids) if secrets is None else secrets.state.tolist()
        named = {str(c): key for c, key in zip(ids.tolist(), keys, strict=True)}
        own: dict[str, Any] = {"secrets": named, "threads": threads}
        if half is not None:
            own["half"] = half
        for block, data in blocks.items():
            _replace(path / f"data-{block}.safetensors", encode(data, Header("data", (block,))))
        _replace(path / "own.json", json.dumps(own, indent=1).encode())
        _replace(path / "card.json", card.to_json().encode(), mode=0o644)
        return ClientFolder(path)

    def secrets(self, ids: Tensor) -> Key:
        """The clients' own keys, ``(K,)``.

        Raises:
            ProtocolError: a client is not of this folder.
        """
        return Key(self._secrets[self._places(ids)])

    def known(self, ids: Tensor) -> Tensor:
        """The same ids, of clients of this folder.

        Raises:
            ProtocolError: one is not.
        """
        self._places(ids)
        return ids

    def _places(self, ids: Tensor) -> Tensor:
        """Where clients are among those of this folder; asked of every chunk, so not in O(C)."""
        if (strange := ids[~among(ids, self.ids)]).numel():
            raise ProtocolError(f"client {int(strange[0])} is not of this folder")
        return torch.searchsorted(self.ids, ids)

    def client(self) -> Client[Any, Any]:
        """Make the client half from the card.

        Raises:
            UserError: there is no such half here, or the card does not suit it.
        """
        half = self._half or find_paper(self.card.paper).maker
        if half is None:
            raise UserError(f"paper '{self.card.paper}' has no client half that can be made here")
        try:
            make = load(half)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"client half '{half}' (module:function) not found: {error}") from error
        try:
            client = make(self.card, self.path)
        except (KeyError, TypeError) as error:
            raise UserError(f"{self.path / 'card.json'} does not suit '{half}': {error}") from error
        if not isinstance(client, Client):
            raise UserError(f"'{half}' gives no Client")
        return client

    def check(self, client: Client[Any, Any]) -> None:
        """Hold a client half against the card: its messages, and what it computes with.

        Raises:
            Misfit: its messages are others.
            UserError: it has other constants.
        """
        check_messages(self.card, client.steps())
        if self.card.constants:
            check_constants(self.card.constants, client.constants())

    def data(self, block: int, client: Client[Any, Any]) -> Any:
        """The clients' own data of a block; None where they have none.

        Raises:
            UserError: the file is damaged.
        """
        path = self.path / f"data-{block}.safetensors"
        if not path.exists():
            return None
        try:
            return decode(_read(path), client.data_type())[0]
        except ProtocolError as error:
            raise UserError(f"{path} is damaged: {error}") from error

    def blocks(self) -> list[int]:
        """Numbers of the blocks of which the clients have data, ascending."""
        found = self.path.glob("data-*.safetensors")
        return sorted(int(path.stem.removeprefix("data-")) for path in found)

    def position(self) -> Position:
        """How far the clients are.

        Raises:
            UserError: the file is damaged.
        """
        return _position(self.path)

    def state(self, point: Point) -> Any:
        """Private state at a point, as `coterie.core.federation.store` saves it.

        Raises:
            UserError: the file is damaged.
        """
        if point.state < 0:
            return None
        return resolve(saved.load(self._state(point.state)), self.path)

    def tidy(self, position: Position) -> None:
        """Remove append-only entries that no point of a position has."""
        newest = [self._state(point.state) for point in position.points]
        clear(self.path, [*newest, *self.path.glob("best-*.pt")])

    def reply(self, point: Point) -> bytes:
        """What was answered at a point."""
        return _read(self._reply(point.reply))

    def keep(self, position: Position, reply: bytes | None = None, state: Any = None) -> None:
        """Move on: all of it or nothing, also where the process is killed in between.

        Args:
            position: the new one.
            reply: of its newest point, if that is new.
            state: private state of its newest point, if that is new.

        Raises:
            UserError: the folder cannot be written.
        """
        newest = position.newest
        try:
            if state is not None:
                saved.save(refer(state, self.path), self._state(newest.state))
                self._state(newest.state).chmod(0o600)
                if (entries := self.path / FOLDER).is_dir():
                    entries.chmod(0o700)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from error
        if reply is not None:
            _replace(self._reply(newest.reply), reply)
        _replace(self.path / "position.json", position.to_json().encode())
        self._forget(position)

    def _forget(self, position: Position) -> None:
        """Remove what the position does not name any more."""
        kept = {self._state(point.state) for point in position.points}
        kept |= {self._reply(point.reply) for point in position.points}
        for pattern in ("state-*", "reply-*"):
            for path in self.path.glob(pattern):
                if path not in kept:
                    path.unlink(missing_ok=True)

    def _state(self, number: int) -> Path:
        return self.path / _state_file(number)

    def _reply(self, number: int) -> Path:
        return self.path / f"reply-{number}.safetensors"


def _drawn(path: Path, ids: Tensor) -> list[int]:
    """Secrets of real clients, those that they have, and new ones from the operating system."""
    own = path / "own.json"
    known = _own(own)["secrets"] if own.exists() else {}
    return [known.get(str(c), randbits(64) - (1 << 63)) for c in ids.tolist()]


def _card(path: Path) -> Card:
    return Card.from_json(_read(path / "card.json").decode(errors="replace"))


def check_one_federation(folders: Sequence[Path]) -> None:
    """Check that folders were cut from the same data by the same settings.

    Raises:
        UserError: two were not, or have no card; names them.
    """
    cards = {path: _card(path) for path in folders}
    first = next(iter(cards), None)
    for path, card in cards.items():
        if first is not None and card != cards[first]:
            raise UserError(
                f"{path} and {first} hold clients of different federations, or were written from "
                "different data: write all folders anew from one run"
            )


def _state_file(number: int) -> str:
    return f"state-{number}.pt"


def _position(folder: Path) -> Position:
    path = folder / "position.json"
    if not path.exists():
        return Position()
    try:
        return Position.from_json(_read(path))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _own(path: Path) -> dict[str, Any]:
    try:
        own = json.loads(_read(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(own, dict):
        raise UserError(f"{path} must hold an object with {', '.join(_OWN)}")
    for name in own:
        if name not in _OWN:
            raise UserError(f"{path}: '{name}' is unknown: {nearest(name, _OWN)}")
    own = {"threads": 1, **own}
    for name, kind in _OWN.items():
        if not isinstance(own.get(name, "" if name == "half" else None), kind):
            raise UserError(f"{path}: '{name}' must be there and of type {kind.__name__}")
    named = (one.isascii() and one.isdigit() for one in own["secrets"])
    if not all(named) or not all(type(key) is int for key in own["secrets"].values()):
        raise UserError(f"{path}: 'secrets' must hold a whole number for the id of each client")
    return own


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file whole or not at all; it survives a loss of power."""
    try:
        with replacing(path) as temporary:
            file = os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb")
            with file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


# Private state of a run's best round, which its best checkpoint refers to by a parcel's name.

_BEST = 2  # the newest, and the one before, until the checkpoint is written


def keep_best(path: Path, heard: str) -> None:
    """Keep the private state after the parcel ``heard``, which the newest turn still has.

    Raises:
        UserError: the folder cannot be written.
    """
    point = next((one for one in _position(path).points if one.name == heard), None)
    best = path / f"best-{heard[:32]}.pt"
    if point is None or point.state < 0 or best.exists():
        return
    with writing(path):
        os.link(path / _state_file(point.state), best)
        os.utime(best)
        kept = sorted(path.glob("best-*.pt"), key=lambda one: one.stat().st_mtime_ns)
        for old in kept[:-_BEST]:
            old.unlink()


def kept_state(path: Path, heard: str) -> Any:
    """Private state after the parcel ``heard``, newest or best; None where there was none.

    Raises:
        UserError: the folder is damaged, or has it no more.
    """
    for point in _position(path).points:
        if point.name == heard:
            return ClientFolder(path).state(point)
    best = path / f"best-{heard[:32]}.pt"
    if not best.exists():
        raise UserError(
            f"the clients in {path} are not as far as the checkpoint, or farther by more than a "
            "round: put back a copy of both, or train anew under another --run.name"
        )
    return resolve(saved.load(best), path)
