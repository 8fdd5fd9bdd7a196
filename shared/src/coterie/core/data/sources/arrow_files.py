"""Parquet and Arrow files (Feather too), of which only the wanted columns are read."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.core.data.sources.class_names import class_names, with_names
from coterie.core.data.sources.file_forms import Form
from coterie.core.data.sources.opening import opened, packed_as
from coterie.core.data.sources.plain_columns import plain
from coterie.core.data.sources.tables import Table
from coterie.core.data.sources.text_files import NoRows, check_names
from coterie.core.errors import UserError

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
