"""The bytes of a message: safetensors for tensors, JSON for everything else; never pickle.

A message is flattened by dotted path. Tensors become safetensors entries of that name; changes of
rows travel in their `wire` form: int32 row numbers and values, or the whole table. Plain values
(str, int, float, bool, None), the keys of dicts and the lengths of lists go, with the `Header`'s,
into one JSON text of the safetensors metadata. Equal messages give equal bytes, bit for bit, NaN
included.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal, TypeVar, get_args, get_origin

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.core.tensors import tree
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.rows import DenseRows, Rows, TouchedRows
from coterie.core.tensors.stacked import Ragged
from coterie.core.wire.annotations import PLAIN, Nest, choices, fields_of

_MISSING = object()


class ProtocolError(ValueError):
    """Bytes or a message that do not follow the protocol; one line says what is wrong."""


def escape(key: str) -> str:
    """Write a dict key as one part of a dotted path (after RFC 6901).

    Example:
        >>> escape("linear.weight")
        'linear~1weight'
    """
    return key.replace("~", "~0").replace(".", "~1")


def join(path: str, name: str) -> str:
    """Append a part to a dotted path."""
    return f"{path}.{name}" if path else name


class Schema:
    """The fields that came over the wire by path, to be claimed one by one by the expected type."""

    def __init__(self, tensors: dict[str, Tensor], static: Any) -> None:
        if not isinstance(static, dict):
            raise ProtocolError("static fields are missing")
        self._tensors = dict(tensors)
        self._static = dict(static)

    def read(self, expected: Any, name: Any) -> Any:
        """Build the message called ``name``, which must be (one of) the expected type(s).

        Raises:
            ProtocolError: the class is another, or a field is missing, unknown or of another kind.
        """
        for choice in choices(expected):
            if choice.__name__ == name:
                message = self._field(choice, "")
                break
        else:
            wanted = " or ".join(choice.__name__ for choice in choices(expected))
            raise ProtocolError(f"message is a {str(name)[:80]!r}, expected {wanted}")
        left = sorted([*self._tensors, *self._static])
        if left:
            raise ProtocolError(f"field {left[0][:80]!r} is unknown to {name}")
        return message

    def _field(self, hint: Any, path: str) -> Any:
        either = choices(hint)
        if type(None) in either and self._static.get(path, _MISSING) is None:
            del self._static[path]
            return None
        kind = next(choice for choice in either if choice is not type(None))
        return self._value(kind, path)

    def _value(self, kind: Any, path: str) -> Any:
        origin = get_origin(kind) or kind
        if kind is Tensor:
            return self._tensor(path)
        if kind is Nest:
            return self._nest(path)
        if origin is dict:
            return self._dict(kind, path)
        if origin is Appended:
            return Appended(self._sequence(list[get_args(kind)[0]], path))  # type: ignore[misc]
        if origin in (list, tuple):
            return self._sequence(kind, path)
        if isinstance(kind, type) and issubclass(kind, Rows):
            return self._rows(path)
        if dataclasses.is_dataclass(origin):
            return self._dataclass(kind, path)
        value = self._plain(path)
        if origin is Literal and value in get_args(kind):
            return value
        if kind is float and type(value) is int:
            return float(value)
        if kind in PLAIN and type(value) is kind:
            return value
        raise ProtocolError(f"field {path!r} is not of type {kind}")

    def _nest(self, path: str) -> Any:
        """A tensor, a plain value or a dict of such, whichever came; never a dataclass."""
        if path in self._tensors:
            return self._tensor(path)
        if isinstance(self._static.get(path), list):
            return self._dict(dict[str, Nest], path)
        return self._plain(path)

    def _dataclass(self, kind: Any, path: str) -> Any:
        origin = get_origin(kind) or kind
        given = dict(zip(getattr(origin, "__parameters__", ()), get_args(kind), strict=False))
        hints = {name: given.get(hint, hint) for name, hint in fields_of(origin).items()}
        names = [field.name for field in dataclasses.fields(origin)]
        values = {name: self._field(hints[name], join(path, name)) for name in names}
        try:
            built = origin(**values)
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"field {path!r} is no valid {kind.__name__}: {error}") from error
        if isinstance(built, Ragged):
            _check_offsets(built, path)
        return built

    def _dict(self, kind: Any, path: str) -> dict[str, Any]:
        keys = self._plain(path)
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise ProtocolError(f"field {path!r} has no list of keys")
        hint = get_args(kind)[1]
        return {key: self._field(hint, join(path, escape(key))) for key in keys}

    def _sequence(self, kind: Any, path: str) -> Any:
        length, hints = self._plain(path), get_args(kind)
        if type(length) is not int or length < 0:
            raise ProtocolError(f"field {path!r} has no length")
        if get_origin(kind) is list or hints[-1] is Ellipsis:
            hints = hints[:1] * min(length, len(self._tensors) + len(self._static))
        if length != len(hints):
            raise ProtocolError(f"field {path!r} has {length} parts, not {len(hints)}")
        parts = [self._field(hint, join(path, str(at))) for at, hint in enumerate(hints)]
        return parts if get_origin(kind) is list else tuple(parts)

    def _rows(self, path: str) -> TouchedRows | DenseRows:
        if join(path, "table") in self._tensors:
            table = self._tensor(join(path, "table"))
            if table.dim() != 3:
                raise ProtocolError(f"field {path!r} has a table of {table.dim()} axes, not 3")
            return DenseRows(table)
        numbers, offsets = self._tensor(join(path, "index")), self._tensor(join(path, "offsets"))
        values, n_rows = self._tensor(join(path, "values")), self._plain(join(path, "n_rows"))
        if numbers.dtype != torch.int32 or type(n_rows) is not int or n_rows < 0:
            raise ProtocolError(f"field {path!r} has row numbers that are not int32")
        if values.dim() != 2 or numbers.shape != values.shape[:1]:
            raise ProtocolError(f"field {path!r} has not one value a row number")
        index = Ragged(numbers.long(), offsets)
        _check_offsets(index, path)
        if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < n_rows:
            raise ProtocolError(f"field {path!r} has a row number outside 0..{n_rows - 1}")
        falls = numbers[1:] <= numbers[:-1]
        # Row numbers ascend within a client; from one client to the next they may fall.
        if bool((falls & (index.rows[1:] == index.rows[:-1])).any()):
            raise ProtocolError(f"field {path!r} has row numbers that do not ascend")
        return TouchedRows(index, values, n_rows)

    def _tensor(self, path: str) -> Tensor:
        tensor = self._tensors.pop(path, None)
        if tensor is None:
            raise ProtocolError(f"tensor {path!r} is missing")
        return tensor

    def _plain(self, path: str) -> Any:
        value = self._static.pop(path, _MISSING)
        if value is _MISSING:
            raise ProtocolError(f"field {path!r} is missing")
        return value


def _check_offsets(rows: Ragged, path: str) -> None:
    offsets, total = rows.offsets, rows.values.shape[0] if rows.values.dim() else -1
    if offsets.dtype != torch.int64 or offsets.dim() != 1 or not offsets.numel():
        raise ProtocolError(f"field {path!r} has offsets that are not int64")
    falls = bool((offsets[1:] < offsets[:-1]).any())
    if falls or int(offsets[0]) != 0 or int(offsets[-1]) != total:
        raise ProtocolError(f"field {path!r} has offsets that do not run from 0 to {total}")


VERSION = 1
MAX_BYTES = 1 << 30
_METADATA = "coterie"
_OF_HEADER = "@"  # before the names of its tensors; no field begins so

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
        header: travels with it: a `Header`, or another dataclass.

    Raises:
        ProtocolError: a leaf is of a kind that cannot travel.

    Example:
        >>> from coterie.core.tensors.stacked import Ragged
        >>> data = encode(Ragged.from_lists([[3, 1], []]), Header("update", (0, 2)))
        >>> message, header = decode(data, Ragged)
        >>> message.tolists(), header.nonce
        ([[3, 1], []], (0, 2))
    """
    tensors: dict[str, Tensor] = {}
    static: dict[str, Any] = {}
    _flatten(message, "", tensors, static)
    belongs: dict[str, Any] = {}
    of_header: dict[str, Tensor] = {}
    _flatten(header, "", of_header, belongs)
    tensors |= {_OF_HEADER + name: tensor for name, tensor in of_header.items()}
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
    found = _header(about, header, tensors)
    own = {name: one for name, one in tensors.items() if not name.startswith(_OF_HEADER)}
    return Schema(own, about.get("static")).read(expected, about.get("message")), found


def peek(data: bytes, max_bytes: int = MAX_BYTES, header: Any = Header) -> Any:
    """Read the header alone.

    Raises:
        ProtocolError: the bytes are not a message.
    """
    tensors, about = _open(data, max_bytes)
    return _header(about if isinstance(about, dict) else {}, header, tensors)


def tensors_of(node: Any) -> dict[str, Tensor]:
    """The tensors that a message, or a part of it, travels as, by their names in `encode`.

    Raises:
        ProtocolError: as `encode`.

    Example:
        >>> from coterie.core.tensors.stacked import Ragged
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


def _header(about: dict[str, Any], kind: Any, tensors: dict[str, Tensor]) -> Any:
    own = {
        name.removeprefix(_OF_HEADER): one
        for name, one in tensors.items()
        if name.startswith(_OF_HEADER)
    }
    try:
        return Schema(own, about.get("header")).read(kind, kind.__name__)
    except ProtocolError as error:
        raise ProtocolError(f"header: {error}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
