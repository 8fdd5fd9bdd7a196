"""Files of one JSON object a line, as Arrow tables of the fields that are asked for.

Arrow alone infers the type of every field and gives up on fields that come and go or change their
type, as the official Amazon files have them. So the lines are parsed against a fixed schema, block
by block.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import json as arrow_json

from coterie.core.data.sources.opening import DAMAGE, opened
from coterie.core.data.sources.text_files import located, unreadable
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
