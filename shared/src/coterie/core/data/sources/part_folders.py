"""A folder of parts as one table: by Spark, Dask, pandas, polars, or by ``save_to_disk``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.core.data.sources.arrow_files import TEXT
from coterie.core.data.sources.tables import Table
from coterie.core.data.sources.text_files import NoRows
from coterie.core.errors import UserError

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_AGAIN = "save it again by save_to_disk"
_BATCH = 1 << 16  # rows that are written at once


def is_saved_set(folder: Path) -> bool:
    """Whether a folder was made by ``save_to_disk``, be it whole or not."""
    if any((folder / name).is_file() for name in (INFO, SPLITS)):
        return True
    return (folder / STATE).is_file() and any(folder.glob("*.arrow"))


def saved_parts(folder: Path) -> list[Path]:
    """List the files of a `Dataset` in the order of its rows.

    Raises:
        UserError: it is a ``DatasetDict``, whose splits are never joined; or something is
            missing, damaged, or has other columns than the folder says.
    """
    if (folder / SPLITS).is_file():
        raise UserError(_choice(folder))
    state, info = _json(folder / STATE), _json(folder / INFO)
    if any(state.get(key) for key in ("_indices_files", "_indices_data_files")):
        raise UserError(
            f"{folder} has rows chosen by indices, as old versions of datasets saved them: load "
            "it, call flatten_indices(), and save it again"
        )
    parts = [_part(folder, entry) for entry in _listed(folder, state)]
    if not parts:
        raise NoRows(f"{folder} has no rows: check the data set that was saved")
    columns = info.get("features")
    for part in parts:
        _check_columns(folder, part, set(columns) if isinstance(columns, dict) else None)
    return parts


def _choice(folder: Path) -> str:
    """Say which splits there are to choose from."""
    found = _json(folder / SPLITS).get("splits")
    names = [str(name) for name in found] if isinstance(found, list) else []
    if not names:
        return f"{folder / SPLITS} names no splits: {_AGAIN}"
    return (
        f"{folder} is a DatasetDict with the splits {', '.join(names)}: name the folder of one, "
        f"such as {folder / names[0]}"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path.parent} has no {path.name}, so it is no whole folder of a Dataset: {_AGAIN}, "
            "or name one of its files"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged or cut off: {_AGAIN}")
    return found


def _listed(folder: Path, state: dict[str, Any]) -> list[str]:
    found = state.get("_data_files")
    entries = found if isinstance(found, list) else [None]
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    # A name alone: what lies elsewhere is not the folder's own.
    if any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise UserError(f"{folder / STATE} does not list the files of the data: {_AGAIN}")
    if len(set(names)) < len(names):
        raise UserError(f"{folder / STATE} lists a file twice: {_AGAIN}")
    return [str(name) for name in names]


def _part(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise UserError(f"{folder} lacks {name}, which its {STATE} lists: {_AGAIN}")
    return path


def _check_columns(folder: Path, part: Path, columns: set[str] | None) -> None:
    """Refuse a part that is no Arrow stream, be it empty, or has not the columns that it should."""
    try:
        with pa.OSFile(str(part), "rb") as source:
            has = set(pa.ipc.open_stream(source).schema.names)
    except (OSError, EOFError, pa.ArrowException):
        raise UserError(f"{part} is no whole Arrow stream: {_AGAIN}") from None
    if odd := sorted(has ^ (has if columns is None else columns)):
        what = "has" if odd[0] in has else "lacks"
        raise UserError(
            f"{folder} is a folder of which {part.name} {what} the column '{odd[0][:40]}', unlike "
            f"its {INFO}: {_AGAIN}"
        )


def write_saved(table: pa.Table, folder: Path, fingerprint: str) -> None:
    """Write a table into a folder as ``Dataset.save_to_disk`` does.

    Args:
        table: of any columns.
        folder: is there, and empty.
        fingerprint: by which ``datasets`` knows the rows; its first 16 letters are written.
    """
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as file:
        file.write_table(table, max_chunksize=_BATCH)
    state: dict[str, object] = {
        "_data_files": [{"filename": name}],
        "_fingerprint": fingerprint[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    info = {"citation": "", "description": "", "homepage": "", "license": ""}
    for file_name, content in ((STATE, state), (INFO, info)):
        (folder / file_name).write_text(json.dumps(content, indent=2) + "\n")


# A folder of parts, as Spark, Dask, pandas and polars write one table.

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
