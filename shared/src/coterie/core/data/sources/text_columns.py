"""From the text of a table to its columns: strict quotes, numbers, columns that grow in blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.data.sources.text_files import Layout, for_parser, located

_CHUNK = 4 << 20  # bytes that are looked at together
_LONGEST = 64 << 20  # bytes of a quoted field
_BOM = b"\xef\xbb\xbf"
_QUOTED = re.compile(rb'"[^"]*+(?:""[^"]*+)*+"')
_QUOTE, _ENDS = ord('"'), b"\r\n"


def check_quotes(path: Path, layout: Layout) -> None:
    """Read a file that `check_text` accepted once more, to see whether all quotes are strict.

    Raises:
        UserError: naming the line where the quote that is at fault opens.
    """
    whole = _rows_of(layout.mark)
    rest, line, last = b"", 1, False
    with for_parser(path, layout) as stream:
        while not last:
            part = stream.read(_CHUNK)
            last = not part
            text = (rest + part).removeprefix(_BOM) if line == 1 else rest + part
            end = len(text) if last else text.rfind(b"\n") + 1
            if last or not _is_strict(text[:end], layout.mark):
                match = whole.match(text, 0, end)
                end = match.end() if match else 0
                if fault := _fault(text, end, line, layout, last or len(text) > _LONGEST):
                    raise located(path, *fault, layout.remedy)
            line, rest = line + _lines(text[:end]), text[end:]


def _is_strict(text: bytes, mark: str) -> bool:
    """Tell quickly whether whole rows begin and end here and all quotes are strict.

    The first quote opens, the second closes, and so on: a doubled one closes and opens again.
    """
    if b'"' not in text:
        return True
    data = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(data == _QUOTE)
    if len(places) % 2:
        return False
    bounds = np.zeros(256, bool)
    bounds[[ord(mark), *_ENDS]] = True
    opens, closes = places[::2], places[1::2]
    before = np.where(opens > 0, data[opens - 1], _ENDS[0])
    after = np.where(closes + 1 < len(data), data[np.minimum(closes + 1, len(data) - 1)], _ENDS[0])
    again = np.append(False, closes[:-1] + 1 == opens[1:])
    open_again = np.append(again[1:], False)
    return bool((bounds[before] | again).all() and (bounds[after] | open_again).all())


def _rows_of(mark: str) -> re.Pattern[bytes]:
    """Match as many whole strict rows as there are."""
    sep = re.escape(mark.encode())
    blank = b" " if mark == "\t" else b"[ \t]"
    bare = rb"(?!%b*+\")[^%b\r\n]*+" % (blank, sep)
    field = rb"(?:%b|%b)" % (_QUOTED.pattern, bare)
    end = rb"(?:\r\n?|\n)"
    # The last row may have no line end.
    row = rb"%b(?:%b%b)*+" % (field, sep, field)
    return re.compile(rb"(?:%b%b)*+(?:%b\Z)?" % (row, end, row))


def _fault(text: bytes, at: int, line: int, layout: Layout, last: bool) -> tuple[int, str] | None:
    """Line and name of what is wrong from a row on; None if more text must come first.

    The text begins on ``line``, the row at place ``at``; no more comes if it is the ``last``.
    """
    sep = layout.mark.encode()
    blank = rb" *+" if sep == b"\t" else rb"[ \t]*+"
    opens, bare = re.compile(blank + rb'"'), re.compile(rb"[^%b\r\n]*+" % re.escape(sep))
    while at < len(text):
        here = line + _lines(text[:at])
        if not opens.match(text, at):
            at = _end(bare.match(text, at)) + 1
            continue
        if not text.startswith(b'"', at):
            return here, "blanks stand before the quote that opens a field"
        if (closed := _QUOTED.match(text, at)) is None:
            return (here, "a quote is not closed") if last else None
        after = text[closed.end() : closed.end() + 20].splitlines()
        if after and after[0] and not after[0].startswith(sep):
            word, lines = after[0].decode("utf-8", "replace"), _lines(closed.group())
            where = f" in line {here + lines}" if lines else ""
            return here, (
                f"the quote that opens here closes{where} before '{word}', where a separator or a "
                "line end must be: write a quote within quotes twice"
            )
        if not after and not last:
            return None
        at = closed.end() + 1
    return None


def _end(match: re.Match[bytes] | None) -> int:
    assert match is not None  # the pattern matches nothing at all too
    return match.end()


def _lines(text: bytes) -> int:
    """Count line ends of any kind."""
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


# Columns of numbers, written as text or not, piece by piece so that no long text is copied.

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


# Columns that grow block by block, each kept in a small form: codes of words, numbers, or text.

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
