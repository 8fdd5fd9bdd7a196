"""Reader of a file of the user's own: one contract for every format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID, Interactions
from coterie.core.data.sources.arrow_files import LISTS, read_arrow_table, trimmed
from coterie.core.data.sources.file_forms import (
    columns_by_role,
    form_of,
    header,
    separator,
    wanted_columns,
)
from coterie.core.data.sources.json_lines import read_json_table
from coterie.core.data.sources.part_folders import joined, parts_in
from coterie.core.data.sources.readers import build, codes_of
from coterie.core.data.sources.tables import Table, parse_table
from coterie.core.data.sources.text_files import Layout, check_names, check_text, existing, head
from coterie.core.errors import UserError
from coterie.core.tensors.ordering import first_places

_PARTS = {"train": TRAIN, "valid": VALID, "test": TEST}


def parts_of(table: Table, column: str) -> np.ndarray:
    """Read the part of every row, ``(n,)`` int64.

    Raises:
        UserError: naming the first line that is not train, valid or test.
    """
    coded = table.coded(column, blank=True)
    numbers = np.array([_PARTS.get(word, -1) for word in coded.dictionary.to_pylist()])
    part: np.ndarray = numbers[coded.indices.to_numpy()].astype(np.int64)
    if (part < 0).any():
        row = int((part < 0).argmax())
        what = f"'{coded[row].as_py()[:40]}', not train, valid or test"
        raise table.fault(row, f"column '{column}' is {what}")
    return part


def check_positions(
    table: Table, user: pa.DictionaryArray, position: np.ndarray, part: np.ndarray | None
) -> None:
    """Check that the positions put each user's rows, and the parts, into one order.

    Args:
        table: for messages.
        user: ``(n,)`` ids, from `Table.coded`.
        position: ``(n,)`` int64.
        part: ``(n,)`` int64 from `parts_of`, or None.

    Raises:
        UserError: a user's position repeats, or a later one is of an earlier part.
    """
    number = user.indices.to_numpy()
    order = np.argsort(position, kind="stable")
    order = order[np.argsort(number[order], kind="stable")]
    same = number[order][1:] == number[order][:-1]
    faults = [(np.diff(position[order]) == 0, "the user has this position twice")]
    if part is not None:
        what = "the part is before that of the user's position before it"
        faults.append((np.diff(part[order]) < 0, what))
    for wrong, what in faults:
        if (wrong & same).any():
            raise table.fault(int(order[1:][int((wrong & same).argmax())]), what)


# Items that belong to organisations: an item is a domain and an id, never an id alone.

_MARK = "/"


def in_domains(domain: pa.DictionaryArray | str, item: pa.DictionaryArray) -> pa.DictionaryArray:
    """Names of items, ``domain/id``: equal ids of two domains are two items.

    Args:
        domain: ``(n,)`` text from `domain_column`, or one domain for all.
        item: ``(n,)`` text, as `Table.coded` gives it.
    """
    text, words = pa.large_string(), item.dictionary
    mark = pa.scalar(_MARK, text)
    if isinstance(domain, str):
        names = pc.binary_join_element_wise(pa.scalar(domain, text), words, mark)
        return pa.DictionaryArray.from_arrays(item.indices, names)
    pair = domain.indices.to_numpy().astype(np.int64) * len(words) + item.indices.to_numpy()
    coded = pa.array(pair).dictionary_encode()
    of_domain, of_item = np.divmod(coded.dictionary.to_numpy(), len(words))
    parts = domain.dictionary.take(pa.array(of_domain)), words.take(pa.array(of_item))
    names = pc.binary_join_element_wise(*parts, mark)  # no two pairs have one: no domain has a /
    return pa.DictionaryArray.from_arrays(coded.indices, names)


def domain_column(table: Table, column: str) -> pa.DictionaryArray:
    """Read the domain of every row, ``(n,)`` text.

    Raises:
        UserError: naming the first line where it is missing, or holds a ``/``.
    """
    domain = table.coded(column)
    marked = pc.match_substring(domain.dictionary, _MARK).to_numpy(zero_copy_only=False)
    if marked.any():
        table.refuse(marked[domain.indices.to_numpy()], f"column '{column}' holds a '{_MARK}'")
    return domain


def with_domains(found: Interactions) -> Interactions:
    """Say the domain of every item whose name is from `in_domains`."""
    return replace(found, domains=[name.split(_MARK, 1)[0] for name in found.item_names])


_FRACTIONS_PER_SECOND = 1_000_000
_MICROSECONDS = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_NUMBERS = ("time", "order")  # roles whose values hardly repeat
_DATES = 1 << 18  # that are read at a time
_REMEDY = "correct or delete the line, or name other columns by --data.columns"


def read_own(
    path: Path, columns: Mapping[str, str] | None = None, targets: bool = False
) -> Interactions:
    """Read a file of one interaction a row.

    Ids are kept as text. Times may be numbers (any unit) or ISO 8601 dates (kept as microseconds
    since 1970, UTC where no zone is given). Without a time every time is 0, which is refused only
    where times are needed. Genres are separated by ``|``.

    Args:
        path: the file, see `read_columns`.
        columns: column name by role. A role that is not named is looked for under its own name,
            except ``split`` (train, valid or test: the parts that the file gives), ``order`` (the
            position among the user's own rows, in place of ``time``) and ``domain`` (the
            organisation that has the item; equal ids of two domains are two items).
        targets: see `coterie.core.data.sources.readers.build`.

    Raises:
        UserError: for an unknown role or column, or a malformed line, naming file and line.
    """
    wanted = wanted_columns(columns or {})
    table = read_columns(
        path,
        set(wanted.values()),
        repeated={column for role, column in wanted.items() if role not in _NUMBERS},
        numbers={wanted[role] for role in _NUMBERS if role in wanted},
    )
    role_of = columns_by_role(path, table.names, columns or {}, table.unit)
    user, item = table.coded(role_of["user"]), table.coded(role_of["item"])
    if "domain" in role_of:
        item = in_domains(domain_column(table, role_of["domain"]), item)
    time, part, rating = np.zeros(len(table), np.int64), None, None
    if "time" in role_of:
        time = _times(table, role_of["time"])
        table = table.without(role_of["time"])
    if "split" in role_of:
        part = parts_of(table, role_of["split"])
    if "order" in role_of:
        time = table.integers(role_of["order"])
        check_positions(table, user, time, part)
    if "rating" in role_of:
        rating = _ratings(table, role_of["rating"])
        table = table.without(role_of["rating"])
    found = build(
        user,
        item,
        time,
        rating,
        _titles(item, table, role_of["title"]) if "title" in role_of else None,
        _genres(item, table, role_of["genres"]) if "genres" in role_of else None,
        str(path),
        split=part,
        positions="order" in role_of,
        targets=targets,
    )
    return with_domains(found) if "domain" in role_of else found


def read_columns(
    path: Path,
    wanted: Collection[str],
    remedy: str = _REMEDY,
    repeated: Collection[str] = (),
    numbers: Collection[str] = (),
    labels: Collection[str] = (),
) -> Table:
    """Read those of the wanted columns that a file has.

    Args:
        path: CSV in UTF-8 with a header line, JSON lines, Parquet or Arrow (Feather), plain or
            packed by gzip, bzip2, xz or zip, as the first bytes tell; or a folder of such files
            with the same columns, which are joined, or of ``save_to_disk``. The separator of a CSV
            file (comma, tab or semicolon) is the one that finds most of the columns in the header.
            White space around names of columns and around text is left out.
        wanted: names of columns.
        remedy: what to do about a malformed line.
        repeated: see `coterie.core.data.sources.tables.parse_table`.
        numbers: the same.
        labels: see `coterie.core.data.sources.arrow_files.read_arrow_table`.

    Raises:
        UserError: the file cannot be read, or is malformed.
    """
    existing(path)

    def read(part: Path) -> Table:
        return _table(part, wanted, remedy, repeated, numbers, labels)

    return joined(path, iter(parts_in(path)), read) if path.is_dir() else read(path)


def _table(
    path: Path,
    wanted: Collection[str],
    remedy: str,
    repeated: Collection[str],
    numbers: Collection[str],
    labels: Collection[str],
) -> Table:
    form = form_of(path)
    if form == "json":
        return read_json_table(path, wanted, remedy)
    if form != "csv":
        return read_arrow_table(path, form, wanted, remedy, labels)
    quotes = check_text(path, Layout((), remedy=remedy))
    text = head(path, Layout(()))
    names = header(text, wanted)
    check_names(path, names)
    mark = separator(text, wanted)
    layout = Layout(tuple(names), mark, header=True, quoted=True, remedy=remedy)
    # A file without any of them is not parsed: its columns are all that the message needs.
    known = [column for column in names if column in wanted]
    if not known:
        return Table(path, tuple(names), pa.table({}), lambda row: 1, "")
    found = parse_table(path, layout, quotes, known, repeated, numbers)
    columns = {
        name: column if pa.types.is_integer(column.type) else trimmed(column)
        for name, column in zip(found.columns.column_names, found.columns.columns, strict=True)
    }
    return replace(found, columns=pa.table(columns))


def _ratings(table: Table, column: str) -> np.ndarray:
    rating = table.numbers(column)
    too_large = np.abs(rating) > np.finfo(np.float32).max
    table.refuse(too_large, f"column '{column}' is too large for a rating")
    return rating


def _times(table: Table, column: str) -> np.ndarray:
    """Times as ``(n,)`` int64: whole numbers as they are, fractions and dates in microseconds."""
    kind = table.columns[column].type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _instants(table, column)
    if pa.types.is_temporal(kind):
        raise UserError(
            f"{table.path}: column '{column}' is of type {kind}: times are numbers, or dates with "
            "or without a time of the day"
        )
    if (whole := table.whole(column)) is not None:  # exact even for nanoseconds
        return whole
    if not pa.types.is_floating(kind):
        filled = table.filled(column)
        try:
            float(filled[0].as_py())
        except ValueError:
            return _dates(table, column, filled)
    number = table.numbers(column)
    if not (number % 1).any() and np.abs(number).max() < 2.0**53:
        return number.astype(np.int64)
    scaled = number * _FRACTIONS_PER_SECOND
    too_large = np.abs(scaled) >= 2.0**63
    table.refuse(too_large, f"column '{column}' is too large for a time")
    return np.rint(scaled).astype(np.int64)


def _instants(table: Table, column: str) -> np.ndarray:
    """Typed dates and times as ``(n,)`` int64 in microseconds, rounded down as pandas does."""
    values = table.values(column)
    missing = values.is_null().to_numpy(zero_copy_only=False)
    table.refuse(missing, f"column '{column}' is missing")
    unit = {"date32[day]": "D", "date64[ms]": "ms"}.get(str(values.type)) or values.type.unit
    number = np.array(values.cast(pa.int32() if unit == "D" else pa.int64()), np.int64)
    if unit == "ns":
        return number // 1000
    scale = _MICROSECONDS[unit]
    too_large = np.abs(number.astype(np.float64)) * scale >= 2.0**63
    table.refuse(too_large, f"column '{column}' is too large for a time")
    return number * scale


def _dates(table: Table, column: str, values: pa.Array) -> np.ndarray:
    import pandas as pd  # reads every form of ISO 8601, mixed zones too, as Arrow does not

    found = np.empty(len(values), np.int64)
    for start in range(0, len(values), _DATES):
        words = values.slice(start, _DATES).to_pylist()
        dates = pd.to_datetime(pd.Series(words), format="ISO8601", utc=True, errors="coerce")
        bad = dates.isna().to_numpy()
        if bad.any():
            row = int(bad.argmax())
            what = (
                f"column '{column}' is '{words[row][:40]}', neither a number nor an ISO 8601 date"
            )
            raise table.fault(start + row, what)
        numbers = dates.dt.tz_convert(None).to_numpy().astype("datetime64[us]").astype(np.int64)
        found[start : start + len(words)] = numbers
    return found


def _first_rows(item: pa.DictionaryArray) -> tuple[list[str], pa.Array]:
    """Every item, and the first row that has it."""
    rows = first_places(codes_of(item), len(item.dictionary))
    return item.dictionary.to_pylist(), pa.array(rows.numpy())


def _titles(item: pa.DictionaryArray, table: Table, column: str) -> dict[str, str]:
    """First title given for every item."""
    items, rows = _first_rows(item)
    titles = table.coded(column, blank=True).take(rows).to_pylist()
    return dict(zip(items, titles, strict=True))


def _genres(item: pa.DictionaryArray, table: Table, column: str) -> dict[str, list[str]]:
    """Genres in the first row of every item."""
    items, rows = _first_rows(item)
    kind = table.columns[column].type
    if kind == LISTS:
        found = [row or [] for row in table.values(column).take(rows).to_pylist()]
    else:
        words = table.coded(column, blank=True).take(rows).to_pylist()
        found = [word.split("|") for word in words]
    lists = ([word.strip() for word in row if word and word.strip()] for row in found)
    return dict(zip(items, lists, strict=True))
