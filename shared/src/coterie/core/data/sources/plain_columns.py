"""Columns of typed files in the few types that readers know; text is trimmed in every format.

Parquet and Arrow have many types for one thing: text alone has five. A column becomes text, whole
numbers, floats, truth values, dates and times, or lists of text. Anything else stays as it is, for
the reader to refuse by the name of its type.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()
LISTS = pa.large_list(TEXT)


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give a column of any type one of those that readers know, its values kept.

    Missing values stay null, and NaN becomes null: typed files mean the same by both.

    Raises:
        pa.ArrowInvalid: bytes that should be text are no UTF-8.

    Example:
        >>> plain(pa.chunked_array([pa.array([" a", None], pa.string_view())])).to_pylist()
        ['a', None]
    """
    if column.null_count == len(column):  # of whatever type, there is nothing in it
        return pa.chunked_array([pa.nulls(len(column), TEXT)])
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_run_end_encoded(column.type):
        column = pa.chunked_array(
            [pc.run_end_decode(chunk) for chunk in column.chunks], column.type.value_type
        )
    kind = column.type
    if _is_words(kind):
        return trimmed(column.cast(TEXT))
    if pa.types.is_decimal(kind):
        return _undecimal(column)
    if pa.types.is_uint64(kind):
        return _fitting(column)
    if pa.types.is_floating(kind):
        found = column.cast(pa.float64())
        missing = pc.is_nan(found)
        if not pc.any(missing).as_py():
            return found
        known = pc.if_else(missing, pa.scalar(None, pa.float64()), found)
        return plain(known) if known.null_count == len(known) else known
    return _lists(column) if _is_list(kind) else column


def trimmed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without white space at either end; what is dictionary-encoded has each word once."""
    if not pa.types.is_dictionary(column.type):
        return pc.utf8_trim_whitespace(column)
    coded = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    words = pc.utf8_trim_whitespace(coded.dictionary)
    if words.equals(coded.dictionary):
        return column
    again = words.dictionary_encode()  # two words may have become one
    place = again.indices.to_numpy()[coded.indices.to_numpy()]
    found = pa.DictionaryArray.from_arrays(pa.array(place, pa.int32()), again.dictionary)
    return pa.chunked_array([found])


def _is_words(kind: pa.DataType) -> bool:
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests) or bool(
        pa.types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    tests = ("list", "large_list", "list_view", "large_list_view", "fixed_size_list")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


def _undecimal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole numbers where all are whole, else floats."""
    for whole in (pa.decimal128(38, 0), pa.decimal256(76, 0)):
        try:
            return _fitting(column.cast(whole))
        except pa.ArrowInvalid:
            continue
    return column.cast(pa.float64())


def _fitting(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole numbers as int64, or as their digits where one is too large."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column.cast(TEXT)


def _lists(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Lists of text, missing words left out, a missing list empty; other lists as they are."""
    found = [_list_array(chunk) for chunk in column.chunks]
    if any(chunk is None for chunk in found):
        return column
    return pa.chunked_array(found, LISTS)


def _list_array(chunk: pa.Array) -> pa.Array | None:
    words = pa.chunked_array([pc.list_flatten(chunk)])
    if pa.types.is_nested(words.type):
        return None
    words = plain(words)
    if pa.types.is_integer(words.type):
        words = words.cast(TEXT)
    if words.type != TEXT:
        return None
    return relisted(chunk, words)


def relisted(lists: pa.Array, words: pa.ChunkedArray) -> pa.Array:
    """Lists of the lengths of others with these words of text in them; a missing one is empty."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = pa.concat_arrays(words.chunks) if words.num_chunks else pa.array([], TEXT)
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat)
