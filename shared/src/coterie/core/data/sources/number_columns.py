"""Columns of numbers, written as text or not, piece by piece so that no long text is copied."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def is_text(kind: pa.DataType) -> bool:
    """Tell text from other types."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def whole_numbers(column: pa.ChunkedArray) -> np.ndarray | None:
    """Numbers as ``(n,)`` int64 where all are written as whole numbers, else None.

    Args:
        column: of any type; one that is dictionary-encoded is one chunk whose words all occur.
    """
    if pa.types.is_dictionary(column.type):
        (coded,) = column.chunks
        words = whole_numbers(pa.chunked_array([coded.dictionary]))
        return None if words is None else words[coded.indices.to_numpy()]
    if not (is_text(column.type) or pa.types.is_integer(column.type)):
        return None
    found, start = np.empty(len(column), np.int64), 0
    for chunk in column.chunks:
        numbers = as_whole(chunk)
        if numbers is None or numbers.null_count:
            return None
        found[start : start + len(chunk)] = numbers.to_numpy()
        start += len(chunk)
    return found


def floats(column: pa.ChunkedArray) -> np.ndarray:
    """Numbers of a column as for `whole_numbers`, ``(n,)`` float64; what is none is not finite."""
    if pa.types.is_dictionary(column.type):
        (coded,) = column.chunks
        numbers: np.ndarray = floats(pa.chunked_array([coded.dictionary]))
        return numbers[coded.indices.to_numpy()]
    found, start = np.empty(len(column), np.float64), 0
    for chunk in column.chunks:
        found[start : start + len(chunk)] = _floats(chunk)
        start += len(chunk)
    return found


def as_whole(values: pa.Array) -> pa.Array | None:
    """Numbers as int64 where all are whole numbers, or written as such; else None."""
    if not is_text(values.type):
        return _cast(values, pa.int64())
    for mark in ("x", "X"):  # Arrow would read 0x1F as 31
        if pc.any(pc.match_substring(values, mark)).as_py():
            return None
    found = _cast(values, pa.int64())
    return _cast(pc.utf8_trim_whitespace(values), pa.int64()) if found is None else found


def _floats(values: pa.Array) -> np.ndarray:
    found = _cast(values, pa.float64())
    if is_text(values.type) and found is None:  # some fields are no numbers, or stand in blanks
        values = pc.utf8_trim_whitespace(values)
        values = pc.if_else(pc.match_substring_regex(values, _NUMBER), values, None)
        found = _cast(values, pa.float64())
    if found is None or pa.types.is_boolean(values.type):
        return np.full(len(values), np.nan)
    numbers: np.ndarray = found.to_numpy(zero_copy_only=False)
    return numbers


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Convert; None where some value has no such form."""
    try:
        return values.cast(kind, safe=not pa.types.is_floating(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
