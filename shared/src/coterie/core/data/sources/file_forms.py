"""What a file of one's own is, told by its beginning: its form, its columns' roles. Torch-free."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from coterie.core.data.sources.text_files import DAMAGE, bare_name, first_line, located, opened
from coterie.core.errors import UserError, nearest
from coterie.core.registry.data_sets import data_sets

Form = Literal["csv", "json", "parquet", "arrow file", "arrow stream"]

TEXT = (".csv", ".tsv", ".txt", ".dat")
JSON = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc", ".arrows")

_START = 1 << 10  # bytes that are looked at
_FORMS: dict[bytes, Form] = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow file",
    b"\xff\xff\xff\xff": "arrow stream",
}
_REFUSED = {
    b"PARE": "an encrypted Parquet file",
    b"FEA1": "a Feather file of version 1",
    b"ORC": "an ORC file",
    b"Obj\x01": "an Avro file",
    b"SQLite format 3": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a file of NumPy",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"\x04\x22\x4d\x18": "compressed by lz4",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"%PDF": "a PDF document",
    b"{\\rtf": "a document of an office",
}
_PAGES = (b"<!doctype", b"<html", b"<?xml")
_WIDE = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def form_of(path: Path) -> Form:
    """Tell the form of a file, plain or packed.

    Raises:
        UserError: it is of a form that is not read, or text in another encoding.
    """
    try:
        with opened(path) as stream:
            start = stream.read(_START)
    except (*DAMAGE, OSError):
        return "csv"  # whose reader says what is damaged
    for magic, form in _FORMS.items():
        if start.startswith(magic):
            return form
    _check(path, start)
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"{") and text[1:].lstrip()[:1] in (b'"', b"}"):
        return "json"
    name = bare_name(path)
    if name.endswith(JSON) or (text.startswith(b"[") and text[1:].lstrip()[:1] == b"{"):
        return "json"
    if name.endswith(PARQUET + ARROW) and not _is_table(start):
        return "parquet" if name.endswith(PARQUET) else "arrow file"
    return "csv"


def _check(path: Path, start: bytes) -> None:
    """Refuse what is known and not read."""
    for magic, what in _REFUSED.items():
        if start.startswith(magic):
            raise UserError(f"{path} is {what}: save the table as CSV or Parquet")
    if start[257:262] == b"ustar":
        raise UserError(f"{path} is a tar archive: unpack it, and name one of its files")
    if start.lstrip()[:9].lower().startswith(_PAGES):
        raise UserError(f"{path} is HTML or XML: save the table as CSV")
    wide = next((name for mark, name in _WIDE if start.startswith(mark)), "")
    for rest in (start[0::2], start[1::2]):  # without a mark: every other byte is 0
        if len(rest) > 1 and not any(rest[:-1]):
            wide = wide or "UTF-16"
    if wide:
        raise located(path, 1, f"{wide} text, not UTF-8 text", "save the file in that encoding")


def _is_table(start: bytes) -> bool:
    """Tell text that begins like a header line."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)
    except UnicodeDecodeError:
        return False
    return "\0" not in text and any(mark in text.split("\n")[0] for mark in ",;\t")


# Which columns of a user's own file play which role. Without torch, so faults are told at once.

ROLES = ("user", "item", "time", "rating", "title", "genres", "split", "order", "domain")
# A column of such a name may mean something else: these are read only where they are named.
_ONLY_NAMED = ("split", "order", "domain")
_SEPARATORS = (",", "\t", ";")
_LONGEST_HEADER = 1 << 20  # bytes
_MOST_NAMED = 20  # columns that a message lists


def wanted_columns(named: Mapping[str, str]) -> dict[str, str]:
    """Column to look for, by role.

    Args:
        named: column by role, as the user names them. Other roles are looked for under their own
            names, except ``split``, ``order`` and ``domain``.

    Raises:
        UserError: for an unknown role, or both ``time`` and ``order``.

    Example:
        >>> wanted_columns({"user": "who", "order": "step"})["user"]
        'who'
    """
    for role in named:
        if role not in ROLES:
            raise UserError(f"--data.columns: '{role}' is no role: {nearest(role, ROLES)}")
    if {"time", "order"} <= set(named):
        raise UserError("--data.columns: 'order' takes the place of 'time': leave one of them out")
    left_out = {"time"} if "order" in named else set()
    return {
        role: named.get(role, role)
        for role in ROLES
        if role in named or role not in (*_ONLY_NAMED, *left_out)
    }


def columns_by_role(
    path: Path, has: Collection[str], named: Mapping[str, str], unit: str = "line"
) -> dict[str, str]:
    """Column of every role that a file has.

    Args:
        path: the file.
        has: its columns.
        named: as in `wanted_columns`.
        unit: ``line``, or ``row`` where the file is no text.

    Raises:
        UserError: as `wanted_columns`; or a column is missing that is named, or for user or item.
    """
    wanted = wanted_columns(named)
    for role in [role for role in ROLES if role in {*named, "user", "item"}]:
        if wanted[role] not in has:
            what = f"no column '{wanted[role]}' for the {role}"
            hint = f"{columns_hint(wanted[role], has)} (--data.columns {role}=COLUMN)"
            raise located(path, 1, what, hint, unit)
    return {role: column for role, column in wanted.items() if column in has}


def check_columns(name_or_path: str, named: Mapping[str, str]) -> None:
    """Check roles, and the columns of a CSV file by its first line, before anything heavy starts.

    What is wrong with the file itself is left to `coterie.core.data.sources.own_file.read_own`.

    Raises:
        UserError: as `columns_by_role`.
    """
    wanted = wanted_columns(named)
    path = Path(name_or_path).expanduser()
    if name_or_path in data_sets() or not path.is_file():
        return
    try:
        if form_of(path) != "csv":
            return
        with opened(path) as file:
            line = file.readline(_LONGEST_HEADER).decode("utf-8-sig")
    except (*DAMAGE, OSError, UnicodeDecodeError, UserError):
        return
    if line.strip() and line.endswith("\n") and not line.count('"') % 2:
        columns_by_role(path, header(line, wanted.values()), named)


def header(text: str, wanted: Collection[str]) -> list[str]:
    """Columns in the first line of a CSV text."""
    return _fields(text, separator(text, wanted))


def separator(text: str, wanted: Collection[str]) -> str:
    """Comma, tab or semicolon: the one that finds most of the wanted columns in the first line."""

    def found(mark: str) -> tuple[int, int]:
        fields = _fields(text, mark)
        return len(set(wanted).intersection(fields)), len(fields)

    return max(_SEPARATORS, key=found)


def columns_hint(word: str, names: Collection[str]) -> str:
    """Name the nearest of the columns, or what there is; briefly even where there are thousands.

    Example:
        >>> columns_hint("usr", ["user", "item"])
        "did you mean 'user'?"
    """
    if len(names) <= _MOST_NAMED:
        return nearest(word, names)
    some = ", ".join(name[:40] for name in list(names)[:3])
    return f"the file has {len(names):,} columns, the first are {some}"


def _fields(text: str, mark: str) -> list[str]:
    return [field.strip() for field in first_line(text, mark, quoted=True)]
