"""The bytes of a message: safetensors for tensors, JSON for everything else; never pickle.

A message is flattened by dotted path. Tensors become safetensors entries of that name; changes of
rows travel in their `wire` form: int32 row numbers and values, or the whole table. Plain values
(str, int, float, bool, None), the keys of dicts and the lengths of lists go, with the `Header`,
into one JSON text of the safetensors metadata. Equal messages give equal bytes, bit for bit, NaN
included.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.core.tensors import tree
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.rows import DenseRows, Rows, TouchedRows
from coterie.core.wire.schema import ProtocolError, Schema, escape, join
from coterie.core.wire.travel import PLAIN

VERSION = 1
MAX_BYTES = 1 << 30
_METADATA = "coterie"

M = TypeVar("M")


@dataclasses.dataclass(frozen=True)
class Header:
    """What a message belongs to.

    Attributes:
        step: name of the `Client` step.
        nonce: coordinates of the ask: those of the round, then the number of the ask in it.
        client: who sent it; None from the server.
    """

    step: str
    nonce: tuple[int, ...]
    client: int | None = None


def encode(message: Any, header: Any) -> bytes:
    """Turn a message (a dataclass, or None) into bytes.

    Args:
        message: a tree (`coterie.core.tensors.tree`) whose dicts have strings as keys.
        header: travels with it: a `Header`, or another dataclass of plain values.

    Raises:
        ProtocolError: a leaf is of a kind that cannot travel.

    Example:
        >>> from coterie.core.tensors.ragged import Ragged
        >>> data = encode(Ragged.from_lists([[3, 1], []]), Header("update", (0, 2)))
        >>> message, header = decode(data, Ragged)
        >>> message.tolists(), header.nonce
        ([[3, 1], []], (0, 2))
    """
    tensors: dict[str, Tensor] = {}
    static: dict[str, Any] = {}
    _flatten(message, "", tensors, static)
    belongs: dict[str, Any] = {}
    _flatten(header, "", {}, belongs)
    about = {
        "version": VERSION,
        "message": type(message).__name__,
        "header": belongs,
        "static": static,
    }
    text = json.dumps(about, sort_keys=True, separators=(",", ":"))
    try:
        # safetensors refuses views that share memory, hence the copies. A single metadata entry
        # keeps the bytes deterministic: the library writes several in random order.
        copies = {n: tensor.detach().cpu().clone().contiguous() for n, tensor in tensors.items()}
        return safetensors.torch.save(copies, {_METADATA: text})
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise ProtocolError(f"{type(message).__name__} cannot travel: {_line(error)}") from error


def decode(
    data: bytes,
    expected: type[M] | Any,
    *,
    max_bytes: int = MAX_BYTES,
    header: Any = Header,
) -> tuple[M, Any]:
    """Read a message of an expected type.

    Everything is checked before it is used, for the sender is not trusted: size, format, version,
    class, fields and row numbers. Dtypes and shapes are for `coterie.core.federation.guard`.

    Args:
        data: what `encode` gave.
        expected: a dataclass, a union of some, or None; its annotations say which fields.
        max_bytes: longer messages are refused unread.
        header: class of what the message belongs to.

    Raises:
        ProtocolError: the bytes are not such a message; one line that says what is wrong.
    """
    tensors, about = _open(data, max_bytes)
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise ProtocolError(f"protocol version is not {VERSION}")
    message = Schema(tensors, about.get("static")).read(expected, about.get("message"))
    return message, _header(about, header)


def peek(data: bytes, max_bytes: int = MAX_BYTES, header: Any = Header) -> Any:
    """Read the header alone.

    Raises:
        ProtocolError: the bytes are not a message.
    """
    about = _open(data, max_bytes)[1]
    return _header(about if isinstance(about, dict) else {}, header)


def tensors_of(node: Any) -> dict[str, Tensor]:
    """The tensors that a message, or a part of it, travels as, by their names in `encode`.

    Raises:
        ProtocolError: as `encode`.

    Example:
        >>> from coterie.core.tensors.ragged import Ragged
        >>> {n: t.tolist() for n, t in tensors_of({"a": Ragged.from_lists([[3], []])}).items()}
        {'a.values': [3], 'a.offsets': [0, 1, 1]}
    """
    tensors: dict[str, Tensor] = {}
    _flatten(node, "", tensors, {})
    return tensors


def _flatten(node: Any, path: str, tensors: dict[str, Tensor], static: dict[str, Any]) -> None:
    if isinstance(node, Tensor):
        tensors[path] = node
    elif isinstance(node, Rows):
        _flatten_rows(node.wire(), path, tensors, static)
    elif isinstance(node, dict):
        if not all(isinstance(key, str) for key in node):
            raise ProtocolError(f"field {path!r} has keys that are not strings")
        static[path] = list(node)
        for key, child in node.items():
            _flatten(child, join(path, escape(key)), tensors, static)
    elif isinstance(node, (list, tuple, Appended)):
        static[path] = len(node)
        for name, child in tree.children(node):
            _flatten(child, join(path, name), tensors, static)
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        for field in dataclasses.fields(node):
            _flatten(getattr(node, field.name), join(path, field.name), tensors, static)
    elif node is None or isinstance(node, PLAIN):
        static[path] = node
    else:
        raise ProtocolError(f"field {path!r} holds a {type(node).__name__}, which cannot travel")


def _flatten_rows(
    rows: TouchedRows | DenseRows, path: str, tensors: dict[str, Tensor], static: dict[str, Any]
) -> None:
    if isinstance(rows, DenseRows):
        tensors[join(path, "table")] = rows.values
        return
    if rows.n_rows > torch.iinfo(torch.int32).max:
        raise ProtocolError(f"field {path!r} has more rows than int32 can number")
    tensors[join(path, "index")] = rows.index.values.to(torch.int32)
    tensors[join(path, "offsets")] = rows.index.offsets
    tensors[join(path, "values")] = rows.values
    static[join(path, "n_rows")] = rows.n_rows


def _open(data: bytes, max_bytes: int) -> tuple[dict[str, Tensor], Any]:
    """Tensors and the JSON part of a message."""
    if len(data) > max_bytes:
        raise ProtocolError(f"message of {len(data)} bytes is over the limit of {max_bytes}")
    try:
        tensors = safetensors.torch.load(data)
        size = int.from_bytes(data[:8], "little")
        return tensors, json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_METADATA])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"not a message of ours: {_line(error)}") from error


def _header(about: dict[str, Any], kind: Any) -> Any:
    try:
        return Schema({}, about.get("header")).read(kind, kind.__name__)
    except ProtocolError as error:
        raise ProtocolError(f"header: {error}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
