"""Columns that grow block by block, each kept in a small form: codes of words, numbers, or text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.data.sources.number_columns import as_whole

_GROUP = 1 << 18  # rows whose words are looked up at once


def gathered(blocks: Iterable[pa.RecordBatch], kinds: Mapping[str, str], skip: int) -> pa.Table:
    """Gather the columns of blocks of text.

    Args:
        blocks: with those columns as strings, no value missing.
        kinds: by column. ``words``: dictionary-encoded, one chunk, each word once, by first
            appearance. ``numbers``: int64 if all are written as whole numbers, else text, in which
            a number may be written in another way. ``text``: as it is.
        skip: rows to leave out at the beginning.

    Example:
        >>> block = pa.record_batch({"a": ["a", "x", "x"], "n": ["n", "07", "8"]})
        >>> table = gathered([block], {"a": "words", "n": "numbers"}, skip=1)
        >>> table["a"].chunk(0).indices.to_pylist(), table["n"].to_pylist()
        ([0, 0], [7, 8])
    """
    columns = {name: _FORMS[kind]() for name, kind in kinds.items()}
    for block in blocks:
        rows = block.slice(skip)
        skip = max(0, skip - len(block))
        if len(rows):
            for name, column in columns.items():
                column.add(rows[name])
    table = pa.table({name: column.finished() for name, column in columns.items()})
    pa.default_memory_pool().release_unused()  # what held the text
    return table


class _Column(Protocol):
    def add(self, values: pa.Array) -> None: ...

    def finished(self) -> pa.Array | pa.ChunkedArray: ...


class _Grown:
    """An array that grows at its end, in memory of its own, which leaves no holes behind."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype, self._bytes = dtype, bytearray()

    def add(self, values: np.ndarray) -> None:
        self._bytes += np.ascontiguousarray(values, self._dtype).data.cast("B")

    def array(self) -> pa.Array:
        """All of it, not copied; it must not grow any more."""
        kind = pa.from_numpy_dtype(self._dtype)
        n = len(self._bytes) // np.dtype(self._dtype).itemsize
        return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(self._bytes)])


class _Text:
    def __init__(self) -> None:
        self._parts: list[pa.Array] = []

    def add(self, values: pa.Array) -> None:
        self._parts.append(values)

    def finished(self) -> pa.ChunkedArray:
        return pa.chunked_array(self._parts, pa.string())


class _Numbers:
    def __init__(self) -> None:
        self._whole, self._text = _Grown(np.int64), _Text()
        self._is_whole = True

    def add(self, values: pa.Array) -> None:
        numbers = as_whole(values) if self._is_whole else None
        if numbers is not None:
            self._whole.add(numbers.to_numpy())
            return
        if self._is_whole:
            self._text.add(self._whole.array().cast(pa.string()))
            self._is_whole = False
        self._text.add(values)

    def finished(self) -> pa.ChunkedArray:
        return pa.chunked_array([self._whole.array()]) if self._is_whole else self._text.finished()


class _Words:
    def __init__(self) -> None:
        self._waiting: list[pa.Array] = []
        self._codes = _Grown(np.int32)
        self._words = pa.array([], pa.string())
        self._rows = 0

    def add(self, values: pa.Array) -> None:
        self._waiting.append(values)
        self._rows += len(values)
        # As many rows as there are words: looking these up again and again costs no more than they.
        if self._rows >= max(_GROUP, len(self._words)):
            self._code()

    def finished(self) -> pa.Array:
        if self._rows:
            self._code()
        return pa.DictionaryArray.from_arrays(self._codes.array(), self._words)

    def _code(self) -> None:
        """Give the rows that wait their codes, and new words new ones."""
        coded = pa.chunked_array(self._waiting).combine_chunks().dictionary_encode()
        self._waiting.clear()
        self._rows = 0
        known = pc.index_in(coded.dictionary, self._words)
        new = known.is_null()
        code = known.fill_null(0).to_numpy().copy()
        is_new = new.to_numpy(zero_copy_only=False)
        code[is_new] = len(self._words) + np.arange(is_new.sum())
        if is_new.any():
            self._words = pa.concat_arrays([self._words, coded.dictionary.filter(new)])
        self._codes.add(code[coded.indices.to_numpy()])


_FORMS: dict[str, Callable[[], _Column]] = {"text": _Text, "numbers": _Numbers, "words": _Words}
