"""The server's committed rounds on disk: a file a client and state, and one list of them."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.files import write_text, writing
from coterie.core.wire.codec import Header, decode, encode
from coterie.llm.split.generations import ClientState, Generation, Generations

_LIST = "rounds.json"
_FULL = "or choose another folder by --state DIR"


class StateFolder:
    """A folder that always holds complete rounds, whenever the process is killed.

    New states are written under new names first, then the list is replaced, then what no round
    names any more is removed.

    Args:
        path: made if it is missing.
        model: fingerprint of the model; another one's folder is refused.
    """

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self._model = model
        self._names: dict[int, tuple[object, str]] = {}
        with writing(path, _FULL):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, generations: Generations) -> None:
        """Write the rounds.

        Raises:
            UserError: the disk is full, or the folder cannot be written; the old rounds stay.
        """
        names = dict(self._names)
        content = {
            "model": self._model,
            "start": self._write(ClientState(generations.start), names, generations.start),
            "rounds": [self._round(generation, names) for generation in generations.all],
        }
        write_text(self.path / _LIST, json.dumps(content, indent=1))
        used = _files(content)
        self._names = {key: pair for key, pair in names.items() if pair[1] in used}
        for file in self.path.glob("*.safetensors"):
            if file.name not in used:
                file.unlink(missing_ok=True)

    def load(self, generations: Generations) -> None:
        """Fill ``generations`` with what is there, if anything is.

        Raises:
            UserError: the folder is damaged, or of another model.
        """
        file = self.path / _LIST
        if not file.exists():
            return
        try:
            content = json.loads(file.read_text())
            if content["model"] != self._model:
                raise UserError(
                    f"{self.path} is of another model or other settings: start the server with "
                    "those of its first start, or choose another folder by --state DIR"
                )
            known: dict[str, ClientState] = {}
            start = self._read_row(content["start"], known)
            rounds = [self._generation(one, known) for one in content["rounds"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.path} is damaged ({error}): restore it, or remove it to start anew"
            ) from error
        if start.shape != generations.start.shape or not rounds:
            raise UserError(f"{self.path} does not fit the model: choose another by --state DIR")
        generations.start = start
        generations.all = rounds

    def _round(self, generation: Generation, names: dict[int, Any]) -> dict[str, Any]:
        clients = {
            str(client): self._write(state, names, state)
            for client, state in generation.clients.items()
        }
        best = generation.best
        return {
            "round": generation.round,
            "clients": clients,
            "best": None
            if best is None
            else {
                str(client): self._write(ClientState(row), names, row)
                for client, row in best.items()
            },
        }

    def _write(self, state: ClientState, names: dict[int, Any], owner: object) -> str:
        """Write a state, unless the same object has been written; give the file's name."""
        known = names.get(id(owner))
        if known is not None and known[0] is owner:
            return known[1]
        name = f"{secrets.token_hex(8)}.safetensors"
        path, temporary = self.path / name, self.path / f".{name}"
        with writing(path, _FULL):
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(encode(state, Header("state", ())))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        names[id(owner)] = (owner, name)
        return name

    def _generation(self, plain: dict[str, Any], known: dict[str, ClientState]) -> Generation:
        clients = {
            int(client): self._read(name, known) for client, name in plain["clients"].items()
        }
        best: dict[int, Tensor] | None = None
        if plain["best"] is not None:
            named = plain["best"].items()
            best = {int(client): self._read_row(name, known) for client, name in named}
        return Generation(int(plain["round"]), clients, best)

    def _read_row(self, name: str, known: dict[str, ClientState]) -> Tensor:
        row = self._read(name, known).row
        self._names[id(row)] = (row, name)
        return row

    def _read(self, name: str, known: dict[str, ClientState]) -> ClientState:
        """Read a state; rounds that share a file share the object, as when they were written."""
        if name not in known:
            content = (self.path / name).read_bytes()
            known[name] = decode(content, ClientState, max_bytes=len(content))[0]
            self._names[id(known[name])] = (known[name], name)
        return known[name]


def _files(content: dict[str, Any]) -> set[str]:
    files = {content["start"]}
    for one in content["rounds"]:
        files |= {*one["clients"].values(), *(one["best"] or {}).values()}
    return files
