"""Parquet and Arrow files (Feather too): only the wanted columns, in the few types readers know."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.data.sources.file_forms import Form
from coterie.core.data.sources.tables import Table
from coterie.core.data.sources.text_files import NoRows, check_names, opened, packed_as
from coterie.core.errors import UserError

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


# Classes of Hugging Face's ``datasets``: whole numbers in a file whose schema has their names.

_KEY = b"huggingface"
_LISTS = ("List", "LargeList", "Sequence")
_LABELS = {"0", "1"}


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Names of the classes by column, of columns of classes and of lists of classes.

    Example:
        >>> meta = '{"info": {"features": {"g": {"names": ["a", "b"], "_type": "ClassLabel"}}}}'
        >>> class_names(pa.schema([("g", pa.int64())], {"huggingface": meta}))
        {'g': ['a', 'b']}
    """
    text = (schema.metadata or {}).get(_KEY)
    if text is None:
        return {}
    try:
        features = json.loads(text)["info"]["features"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # whoever wrote this, no classes are known
    found = {name: _names(_within(feature)) for name, feature in features}
    return {name: names for name, names in found.items() if names}


def with_names(
    column: pa.ChunkedArray, names: list[str], what: str, numbered: bool
) -> pa.ChunkedArray:
    """Put the names of classes in the place of their numbers, and null for -1, which is no class.

    Args:
        column: of whole numbers, or lists of them.
        names: of the classes.
        what: the column, for messages.
        numbered: whether the numbers are wanted, as of labels; where the names are 0 and 1
            themselves, they count.

    Raises:
        UserError: a number has no name.
    """
    if numbered and not set(names) <= _LABELS:
        return column
    if pa.types.is_integer(column.type):
        return _named(column, names, what)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return column
    words = [_named(pa.chunked_array([pc.list_flatten(c)]), names, what) for c in column.chunks]
    lists = [relisted(chunk, each) for chunk, each in zip(column.chunks, words, strict=True)]
    return pa.chunked_array(lists, LISTS)


def _named(column: pa.ChunkedArray, names: list[str], what: str) -> pa.ChunkedArray:
    known = column.drop_null()
    if len(known):
        extremes = pc.min_max(known).as_py()
        if extremes["min"] < -1 or extremes["max"] >= len(names):
            odd = extremes["min"] if extremes["min"] < -1 else extremes["max"]
            raise UserError(f"{what} has class {odd}, of {len(names)} that have names: check it")
    words = pa.array(names, TEXT)
    place = pc.if_else(pc.equal(column, -1), pa.scalar(None, column.type), column)
    taken = [words.take(chunk) for chunk in place.chunks]
    return pa.chunked_array(taken, TEXT)


def _within(feature: Any) -> Any:
    """What a list is of; anything else as it is."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    if isinstance(feature, dict) and feature.get("_type") in _LISTS:
        return feature.get("feature")
    return feature


def _names(feature: Any) -> list[str]:
    is_class = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
    names = feature.get("names") if is_class else None
    return [str(name) for name in names] if isinstance(names, list) else []


# Parquet and Arrow files (Feather too), of which only the wanted columns are read.

_NAMES = {"parquet": "Parquet", "arrow file": "Arrow", "arrow stream": "Arrow"}
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream


def read_arrow_table(
    path: Path, form: Form, wanted: Collection[str], remedy: str, labels: Collection[str] = ()
) -> Table:
    """Read those of the wanted columns that a file has, see `plain`; classes by their names.

    Args:
        path: the file, plain or packed.
        form: of it.
        wanted: names of columns; white space around a file's names is left out.
        remedy: what to do about a malformed file.
        labels: columns of which the numbers of classes are wanted in place of their names.

    Raises:
        UserError: the file is damaged, has no rows, or a name twice; or a class has no name.
    """
    try:
        written, found = _READ[form](path, wanted)
        names = tuple(name.strip() for name in written)
        found.validate(full=True)
        classes = {name.strip(): words for name, words in class_names(found.schema).items()}
        found = found.rename_columns([name.strip() for name in found.column_names])
        columns = {name: found[name] for name in found.column_names}
        for name in classes.keys() & columns.keys():
            what = f"{path}: column '{name}'"
            columns[name] = with_names(columns[name], classes[name], what, name in labels)
        columns = {name: _plain(path, name, column) for name, column in columns.items()}
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or (str(error).splitlines() or ["cut off"])[0][:80]
        raise UserError(f"{path} cannot be read ({why}): check the file") from None
    except (pa.ArrowException, KeyError, ValueError, NotImplementedError, MemoryError) as error:
        what = (str(error).splitlines() or ["cut off"])[0][:80]
        raise UserError(
            f"{path} is no whole {_NAMES[form]} file ({what}): write it again"
        ) from None
    if columns and not len(found):
        raise NoRows(f"{path} has no rows: check the file")
    return Table(path, names, pa.table(columns), lambda row: row + 1, remedy, unit="row")


def _plain(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return plain(column)
    except pa.ArrowException:
        raise UserError(
            f"{path}: column '{name}' is of type {column.type}, which cannot be read: save it as "
            "text or numbers"
        ) from None


def _source(path: Path) -> Any:
    if not packed_as(path):
        return pa.OSFile(str(path), "rb")
    with opened(path) as stream:
        return pa.BufferReader(stream.read())


def _parquet(path: Path, wanted: Collection[str]) -> tuple[list[str], pa.Table]:
    from pyarrow import parquet

    with closing(_source(path)) as source, parquet.ParquetFile(source) as file:
        names = file.schema_arrow.names
        return names, file.read(_among(path, names, wanted))


def _arrow_file(path: Path, wanted: Collection[str]) -> tuple[list[str], pa.Table]:
    with closing(_source(path)) as source:
        names = pa.ipc.open_file(source).schema.names
        chosen = _among(path, names, wanted)
        reader = pa.ipc.open_file(source, options=_only(names, chosen))
        return names, reader.read_all().select(chosen)


def _arrow_stream(path: Path, wanted: Collection[str]) -> tuple[list[str], pa.Table]:
    with closing(_source(path)) as source:
        names = pa.ipc.open_stream(source).schema.names
        chosen = _among(path, names, wanted)
        source.seek(0)
        table = pa.ipc.open_stream(source, options=_only(names, chosen)).read_all()
        source.seek(max(0, source.size() - len(_END)))
        # Without it there may have been more: rows would go without a word.
        if source.read() != _END:
            raise pa.ArrowInvalid("there is no mark of its end")
        return names, table.select(chosen)


def _among(path: Path, names: list[str], wanted: Collection[str]) -> list[str]:
    """Those of a file's names that are wanted, as the file writes them; none may be there twice."""
    check_names(path, [name.strip() for name in names], "row")
    return [name for name in names if name.strip() in wanted]


def _only(names: list[str], chosen: list[str]) -> pa.ipc.IpcReadOptions:
    # No places at all would stand for all columns.
    return pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in chosen] or [0])


_READ = {"parquet": _parquet, "arrow file": _arrow_file, "arrow stream": _arrow_stream}
