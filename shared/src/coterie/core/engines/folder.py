"""What a client keeps on its own machine: settings, data and private state.

A client's folder holds

- ``client.json``: which client half, and its plain settings::

      {"factory": "my_package.my_module:make_client", "arguments": {"lr": 0.1}, "secret": 42,
       "middleware": [{"factory": "coterie.core.privacy.noise:Clip", "arguments": {"norm": 1.0}}],
       "threads": 1}

  The factory is called with the arguments as keywords and returns a `Client`; its module must not
  import a server half. The client's steps and the ``Client[Private, Data]`` that it is say how
  messages, data and private state are read. ``middleware`` (default none) and ``threads`` (default
  1) are optional. The file holds a secret: it is readable by its owner only.
- ``data.safetensors``: the client's own data, ``ids`` of shape ``(1,)``, as `encode` writes it.
- ``private.safetensors``: its private state now and before the last request; written by the engine,
  one file, replaced as a whole.

One request at a time may be served from a folder.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.core.errors import UserError, nearest
from coterie.core.protocol.client import Client
from coterie.core.protocol.middleware import Middleware
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import Header, encode, peek

_SETTINGS = {"factory": str, "arguments": dict, "secret": int, "middleware": list, "threads": int}
_DEFAULTS = {"arguments": {}, "middleware": [], "threads": 1}


class ClientFolder:
    """The folder of one client.

    Args:
        path: the folder.

    Raises:
        UserError: ``client.json`` is missing or not as described.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._settings = _settings(path / "client.json")

    @staticmethod
    def create(
        path: Path,
        factory: str,
        data: Any,
        secret: Key,
        *,
        arguments: Mapping[str, Any] | None = None,
        middleware: Sequence[Mapping[str, Any]] = (),
        threads: int = 1,
    ) -> ClientFolder:
        """Write a client's folder; private state that is there stays.

        Args:
            path: made if it is missing.
            factory: ``module:function`` that makes the client half.
            data: the client's own data, a dataclass of tensors.
            secret: the client's own key, of which no other client knows anything.
            arguments: of the factory, plain values.
            middleware: ``{"factory": …, "arguments": …}`` each.
            threads: of torch; more than one may round differently.
        """
        path.mkdir(parents=True, exist_ok=True)
        settings = {
            "factory": factory,
            "arguments": dict(arguments or {}),
            "secret": int(secret.state),
            "middleware": [dict(layer) for layer in middleware],
            "threads": threads,
        }
        _replace(path / "data.safetensors", encode(data, Header("data", ())))
        _replace(path / "client.json", json.dumps(settings, indent=2).encode())
        return ClientFolder(path)

    @property
    def secret(self) -> Key:
        """The client's own key."""
        return Key(torch.tensor(self._settings["secret"], dtype=torch.int64))

    @property
    def threads(self) -> int:
        """Threads of torch."""
        return int(self._settings["threads"])

    def build(self, factory: str | None = None) -> tuple[Client[Any, Any], tuple[Middleware, ...]]:
        """Make the client half and what its uploads pass.

        Args:
            factory: ``module:function`` in place of that of ``client.json``.

        Raises:
            UserError: a factory does not exist or does not take the arguments.
        """
        settings = self._settings
        client = _call(factory or settings["factory"], settings["arguments"])
        if not isinstance(client, Client):
            raise UserError(f"factory '{factory or settings['factory']}' gives no Client")
        return client, tuple(
            _call(layer.get("factory", ""), layer.get("arguments", {}))
            for layer in settings["middleware"]
        )

    def data(self) -> bytes:
        """Bytes of the client's own data.

        Raises:
            UserError: the file is missing.
        """
        return _read(self.path / "data.safetensors")

    def private(self, request: tuple[str, tuple[int, ...]]) -> bytes:
        """Private state from which a request starts; empty for a newcomer.

        Args:
            request: its step and nonce. If the state now is the result of the same request, that
                request is repeated, and starts from the state before.

        Raises:
            UserError: the file is damaged.
            ProtocolError: its content is no private state.
        """
        now, before = self._states()
        if not now:
            return b""
        header = peek(now)
        return before if (header.step, header.nonce) == request else now

    def keep(self, start: bytes, state: bytes) -> None:
        """Replace the private state, all or nothing.

        Args:
            start: the state from which the request started.
            state: the state after it.
        """
        both = {"before": _bytes_to_tensor(start), "now": _bytes_to_tensor(state)}
        _replace(self.path / "private.safetensors", safetensors.torch.save(both))

    def _states(self) -> tuple[bytes, bytes]:
        path = self.path / "private.safetensors"
        if not path.exists():
            return b"", b""
        try:
            both = safetensors.torch.load(_read(path))
            return both["now"].numpy().tobytes(), both["before"].numpy().tobytes()
        except (SafetensorError, KeyError, ValueError) as error:
            raise UserError(
                f"{path} is damaged: restore it, or remove it to enrol the client anew"
            ) from error


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(_read(path))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise UserError(f"{path} must hold an object with the keys {', '.join(_SETTINGS)}")
    for name in settings:
        if name not in _SETTINGS:
            raise UserError(f"{path}: '{name}' is unknown: {nearest(name, _SETTINGS)}")
    settings = {**_DEFAULTS, **settings}
    for name, kind in _SETTINGS.items():
        if not isinstance(settings.get(name), kind):
            raise UserError(f"{path}: '{name}' must be there and of type {kind.__name__}")
    return settings


def _call(factory: str, arguments: dict[str, Any]) -> Any:
    module, _, name = factory.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"factory '{factory}' (module:function) is not found: {error}") from error
    try:
        return function(**arguments)
    except TypeError as error:
        raise UserError(f"factory '{factory}' does not take its arguments: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, for its owner only; it survives a loss of power."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _bytes_to_tensor(content: bytes) -> Tensor:
    if not content:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
