"""What a message must look like: its annotations, read against what came over the wire."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor

from coterie.core.tensors.appended import Appended
from coterie.core.tensors.ragged import Ragged
from coterie.core.tensors.rows import DenseRows, Rows, TouchedRows
from coterie.core.wire.travel import PLAIN, Nest, choices, fields_of

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
