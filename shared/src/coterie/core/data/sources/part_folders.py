"""A folder of parts, as Spark, Dask, pandas and polars write one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from coterie.core.data.sources.plain_columns import TEXT
from coterie.core.data.sources.saved_sets import is_saved_set, saved_parts
from coterie.core.data.sources.tables import Table
from coterie.core.data.sources.text_files import NoRows
from coterie.core.errors import UserError

_INDEX = "__index_level_"  # pandas writes an index under such a name
_OF_A_LAKE = ("_delta_log", "_hudi", ".hoodie", "metadata")


def parts_in(folder: Path) -> list[Path]:
    """List the files of a folder, ``part-2`` before ``part-10``, without hidden ones and marks.

    Of a folder made by ``save_to_disk`` those that it lists itself, in that order.

    Raises:
        UserError: it has none, or folders within; or as `saved_parts`.
    """
    if is_saved_set(folder):
        return saved_parts(folder)
    try:
        inside = list(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): check the path") from None
    lake = next((each.name for each in inside if each.is_dir() and each.name in _OF_A_LAKE), None)
    if lake is not None:  # whose files also hold rows that were deleted since
        raise UserError(f"{folder} is a versioned table (it has {lake}): save it as Parquet")
    seen = [each for each in inside if not each.name.startswith((".", "_"))]
    within = next((each.name for each in seen if each.is_dir()), None)
    if within is not None:
        raise UserError(
            f"{folder} is a folder with a folder within ({within}): name a folder that holds the "
            "parts of one table, or a file"
        )
    if not seen:
        raise UserError(f"{folder} is a folder without files: name a file, or a folder of parts")
    return sorted(seen, key=_in_order)


def joined(folder: Path, parts: Iterator[Path], read: Callable[[Path], Table]) -> Table:
    """Read the parts of a folder one by one and join them; those without rows are left out.

    Raises:
        UserError: as ``read`` does; no part has rows; or two parts have not the same columns.
    """
    tables: list[Table] = []
    for part in parts:
        try:
            tables.append(read(part))
        except NoRows:
            continue
    if not tables:
        raise NoRows(f"{folder} has no rows: check its files")
    first = tables[0]
    for table in tables[1:]:
        if table.optional:
            continue
        differ = set(first.names) ^ set(table.names)
        if odd := sorted(name for name in differ if not name.startswith(_INDEX)):
            has, lacks = (first, table) if odd[0] in first.names else (table, first)
            raise UserError(
                f"{folder} is a folder whose files have not the same columns: {lacks.path.name} "
                f"has no '{odd[0][:40]}', {has.path.name} has: name one file, or a folder of parts"
            )
    names = dict.fromkeys(name for table in tables for name in table.columns.column_names)
    columns = {name: _column(name, tables) for name in names}
    starts = [0, *accumulate(len(table) for table in tables)]
    bare = [replace(table, columns=table.columns.select([])) for table in tables]
    return replace(
        first,
        path=folder,
        names=tuple(dict.fromkeys(name for table in tables for name in table.names)),
        columns=pa.table(columns),
        parts=tuple(zip(starts, bare, strict=False)),
    )


def _column(name: str, tables: list[Table]) -> pa.ChunkedArray:
    found = [
        table.columns[name]
        if name in table.columns.column_names
        else pa.chunked_array([pa.nulls(len(table), TEXT)])
        for table in tables
    ]
    kind = _common(name, tables, found)
    chunks = [chunk for part in found for chunk in _as(part, kind).chunks]
    whole = pa.chunked_array(chunks, kind)
    if pa.types.is_dictionary(kind):
        return pa.chunked_array([whole.unify_dictionaries().combine_chunks()])
    return whole


def _as(part: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if part.null_count == len(part):
        return pa.chunked_array([pa.nulls(len(part), kind)])
    return part.cast(kind)


def _common(name: str, tables: list[Table], found: list[pa.ChunkedArray]) -> pa.DataType:
    """Type of all parts of a column: parts of whole numbers and of fractions have one."""
    known = [
        (table, part.type)
        for table, part in zip(tables, found, strict=True)
        if part.null_count < len(part)
    ]
    kinds = list(dict.fromkeys(kind for _, kind in known)) or [found[0].type]
    if len(kinds) == 1:
        return kinds[0]
    if all(pa.types.is_integer(kind) for kind in kinds):
        return pa.int64()
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        return pa.float64()
    if all(table.unit == "line" and not table.optional for table, _ in known):
        return pa.string()  # numbers of a CSV file, in one part written in another way
    (one, first), (other, second) = known[0], next(each for each in known if each[1] != known[0][1])
    raise UserError(
        f"{one.path.parent}: column '{name}' is of type {first} in {one.path.name}, {second} in "
        f"{other.path.name}: write all parts alike"
    )


def _in_order(path: Path) -> list[tuple[int, str]]:
    """Order names with the numbers in them as numbers."""
    words = re.split(r"(\d+)", path.name)
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]
