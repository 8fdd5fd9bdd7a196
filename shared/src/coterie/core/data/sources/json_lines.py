"""Files of one JSON object a line: of a fixed schema, or with types that are learnt."""

from __future__ import annotations

import io
import json
import math
import os
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json

from coterie.core.data.sources.arrow_files import LISTS, TEXT, plain
from coterie.core.data.sources.tables import Table
from coterie.core.data.sources.text_files import DAMAGE, NoRows, located, opened, unreadable
from coterie.core.errors import UserError
from coterie.core.files import replacing

_BLOCK = 32 << 20  # bytes of text that are parsed at once
_REMEDY = "fetch the file again"


def cached_json_lines(path: Path, schema: pa.Schema) -> pa.Table:
    """Read the fields of a schema; other fields are skipped, absent ones are null.

    The table is kept in a folder ``.arrow`` beside the file and found there the next time,
    memory-mapped, unless the file has changed; where that folder cannot be written, the table stays
    in memory.

    Args:
        path: the file, plain or ``.gz``.
        schema: names and types; a field that is not nullable must be in every line.

    Raises:
        UserError: naming file and line, if the file cannot be read, is cut off, or a line is not an
            object with these fields.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path") from None
    folder = path.parent / ".arrow"
    # Files from before a change of the schema must not be found again either.
    mark = zlib.crc32(str(schema).encode())
    cached = folder / f"{path.name}-{stat.st_size}-{stat.st_mtime_ns}-{mark:08x}.arrow"
    if not cached.is_file():
        if not _can_hold(folder):
            return pa.concat_tables(_tables(path, schema))
        _write(path, schema, cached)
    return pa.ipc.open_stream(pa.memory_map(str(cached))).read_all()


def _can_hold(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _write(path: Path, schema: pa.Schema, target: Path) -> None:
    try:
        with (
            replacing(target) as part,
            pa.OSFile(str(part), "wb") as sink,
            pa.ipc.new_stream(sink, schema) as writer,
        ):
            for table in _tables(path, schema):
                writer.write_table(table)
    except OSError as error:
        raise UserError(f"cannot write to {target.parent} ({error}): make room there") from None


def _tables(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    empty = True
    for line, block in line_blocks(path, _REMEDY):
        yield _parse(path, schema, block, line)
        empty = False
    if empty:
        raise located(path, 1, "the file is empty", _REMEDY)


def line_blocks(path: Path, remedy: str) -> Iterator[tuple[int, bytes]]:
    """Number of the first line, and the text, of every block of whole lines that is not blank.

    Raises:
        UserError: the file is damaged, with ``remedy``, what to do about it.
    """
    line = 1
    with opened(path) as stream:
        while True:
            try:
                block = stream.read(_BLOCK) + stream.readline()
            except (*DAMAGE, OSError) as error:
                raise unreadable(path, line, error, remedy) from None
            if not block:
                return
            if block.strip():
                yield line, block
            line += block.count(b"\n")


def _parse(path: Path, schema: pa.Schema, block: bytes, line: int) -> pa.Table:
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    try:
        table = arrow_json.read_json(
            io.BytesIO(block),
            read_options=arrow_json.ReadOptions(block_size=len(block) + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=nullable, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        raise _fault(path, schema, block, line, str(error)) from None
    if any(table[field.name].null_count for field in schema if not field.nullable):
        raise _fault(path, schema, block, line, "a field is missing")
    return table.cast(schema)


def _fault(path: Path, schema: pa.Schema, block: bytes, line: int, otherwise: str) -> UserError:
    """Find the first line of the block that is not as it must be."""
    for number, text in enumerate(block.split(b"\n"), line):
        if text.strip() and (what := _objection(schema, text)):
            return located(path, number, what, _REMEDY)
    return located(path, line, f"in the lines from here: {otherwise[:80]}", _REMEDY)


def _objection(schema: pa.Schema, text: bytes) -> str | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "the line is no JSON object, or cut off"
    if not isinstance(found, dict):
        return "the line is no JSON object"
    for field in schema:
        value = found.get(field.name)
        if value is None and not field.nullable:
            return f"there is no '{field.name}'"
        try:
            pa.array([value], field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            return f"'{field.name}' is {str(value)[:40]!r}, not of type {field.type}"
    return None


# A file of one's own of one JSON object a line: fields of all lines, a type for each field.
#
# Arrow parses block by block against the types that the fields have had. Where it gives up, as a
# field comes, or another type, Python parses the block and says which: numbers may get fractions,
# and whole numbers more digits than 64 bits have; any other change of type is a fault.

_SAMPLE = 100  # lines that tell the types of the first block
_BOM = b"\xef\xbb\xbf"
_OBJECT = pa.struct([pa.field("object", pa.null())])
_TYPES: dict[str, pa.DataType] = {
    "text": TEXT,
    "whole": pa.int64(),
    "long": TEXT,  # digits of whole numbers beyond 64 bits
    "number": pa.float64(),
    "truth": pa.bool_(),
    "words": LISTS,
    "object": _OBJECT,
}
_BOTH = {("whole", "number"): "number", ("whole", "long"): "long", ("number", "long"): "number"}


def read_json_table(path: Path, wanted: Collection[str], remedy: str) -> Table:
    """Read those of the wanted fields that some line has; they are null in the other lines.

    Args:
        path: the file, plain or packed.
        wanted: names of fields.
        remedy: what to do about a malformed line.

    Raises:
        UserError: naming file and line, if the file cannot be read, is cut off, or a line is not an
            object, has a wanted field twice, or of another type than the lines before.
    """
    reader = _Reader(path, wanted, remedy)
    blocks = list(reader.blocks())
    if not blocks:
        raise NoRows(str(located(path, 1, "the file is empty", remedy)))
    found = {
        name: pa.chunked_array([_as(block[name], kind) for block in blocks])
        for name, kind in reader.types().items()
        if name in reader.names
    }
    columns = {name: plain(column) for name, column in found.items()}

    def place(row: int) -> int:
        return next(line for at, (line, _) in enumerate(_objects(path, remedy)) if at == row)

    return Table(path, tuple(reader.names), pa.table(columns), place, remedy, optional=True)


class _Reader:
    """Reads blocks, and learns what fields there are and of which kinds."""

    def __init__(self, path: Path, wanted: Collection[str], remedy: str) -> None:
        self._path, self._wanted, self._remedy = path, wanted, remedy
        self._kinds: dict[str, str] = {}
        self.names: dict[str, None] = {}  # in the order of appearance

    def types(self) -> dict[str, pa.DataType]:
        """Type of every wanted field; of one without a value yet it is text."""
        return {name: _TYPES[self._kinds.get(name, "text")] for name in self._wanted}

    def blocks(self) -> Iterator[pa.Table]:
        for line, block in _blocks(self._path, self._remedy):
            if line == 1 or not self.names:
                lines = block.split(b"\n", _SAMPLE)[:_SAMPLE]
                self._parsed(line, lines, sample=True)
            table = self._fast(block)
            yield self._parsed(line, block.split(b"\n")) if table is None else table

    def _fast(self, block: bytes) -> pa.Table | None:
        """Let Arrow parse; None where it cannot, or would not as it should."""
        types = self.types()
        if not types or "object" in self._kinds.values():
            return None
        options = arrow_json.ParseOptions(
            explicit_schema=pa.schema(types), unexpected_field_behavior="ignore"
        )
        size = arrow_json.ReadOptions(block_size=len(block) + 1)
        try:
            table = arrow_json.read_json(io.BytesIO(block), size, options)
            table.validate(full=True)  # text is UTF-8
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        # An object may span lines, or a line hold two: then rows would stand on other lines.
        if len(table) != _full_lines(block, len(table)):
            return None
        for name in types:
            if table[name].null_count < len(table):
                self._kinds.setdefault(name, "text")
                self.names.setdefault(name)
        return table

    def _parsed(self, line: int, lines: list[bytes], sample: bool = False) -> pa.Table:
        """Parse by Python, learn from it, and say what is wrong."""
        values: dict[str, list[Any]] = {name: [] for name in self._wanted}
        for number, text in enumerate(lines, line):
            if not text.strip():
                continue
            found = self._object(number, text)
            for name in found:
                self.names.setdefault(name)
            for name, column in values.items():
                column.append(self._value(number, name, found.get(name)))
        if sample:
            return pa.table({})
        return pa.table(
            {
                name: pa.array([_in(value, kind) for value in values[name]], kind)
                for name, kind in self.types().items()
            }
        )

    def _object(self, number: int, text: bytes) -> dict[str, Any]:
        try:
            found = json.loads(text.decode(), object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):
            raise self._fault(number, "the line is no JSON object, or cut off") from None
        if not isinstance(found, _Pairs):
            what = "the line is no JSON object"
            if isinstance(found, list):
                what += ", it is an array: write one object a line"
            raise self._fault(number, what)
        for name in found.again:
            if name in self._wanted:
                raise self._fault(number, f"'{name[:40]}' occurs twice")
        return found

    def _value(self, number: int, name: str, value: Any) -> Any:
        """Give the value as it is kept, its kind learnt."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        kind = _kind(value)
        before = self._kinds.get(name, kind)
        both = kind if kind == before else _BOTH.get((kind, before), _BOTH.get((before, kind)))
        if both is None:
            what = f"not of type {_TYPES[before]} as in the lines before"
            raise self._fault(number, f"'{name}' is {str(value)[:40]!r}, {what}")
        if kind == "text" and not _encodes(value):
            raise self._fault(number, f"'{name}' holds half a character (a surrogate)")
        self._kinds[name] = both
        return value

    def _fault(self, number: int, what: str) -> UserError:
        return located(self._path, number, what, self._remedy)


class _Pairs(dict[str, Any]):
    """An object of JSON that knows which names it has twice; inner ones too."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.again = (
            [name for name in self if names.count(name) > 1] if len(names) > len(self) else []
        )


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int):
        return "whole" if -(2**63) <= value < 2**63 else "long"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list) and all(_is_word(word) for word in value):
        return "words"
    return "object"


def _is_word(word: Any) -> bool:
    is_number = isinstance(word, int) and not isinstance(word, bool)
    return word is None or is_number or (isinstance(word, str) and _encodes(word))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _full_lines(block: bytes, expected: int) -> int:
    """Count the lines that are not blank; quickly where there are as many lines as expected."""
    ends = block.count(b"\n") + (not block.endswith(b"\n"))
    if ends == expected and b"\n\n" not in block:
        return ends
    return sum(1 for line in block.split(b"\n") if line.strip())


def _in(value: Any, kind: pa.DataType) -> Any:
    """Make a value one of a type."""
    if value is None:
        return None
    if kind == _OBJECT:
        return {}
    if kind == LISTS:
        return [None if word is None else str(word) for word in value]
    if kind == TEXT:
        return str(value)
    return float(value) if pa.types.is_floating(kind) else value


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Column of a block in the type that the field has in the end."""
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    found = column.cast(kind, safe=not pa.types.is_floating(kind))
    return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)


def _blocks(path: Path, remedy: str) -> Iterator[tuple[int, bytes]]:
    """The same as `line_blocks`, without the mark of UTF-8 that a file may begin with."""
    for line, block in line_blocks(path, remedy):
        text = block.removeprefix(_BOM) if line == 1 else block
        if text.strip():
            yield line, text


def _objects(path: Path, remedy: str) -> Iterator[tuple[int, bytes]]:
    """Number and text of every line that is not blank."""
    for line, block in _blocks(path, remedy):
        for number, text in enumerate(block.split(b"\n"), line):
            if text.strip():
                yield number, text
