"""Which form a file has, told by its first bytes; its name decides where these do not."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Literal

from coterie.core.data.sources.opening import DAMAGE, bare_name, opened
from coterie.core.data.sources.text_files import located
from coterie.core.errors import UserError

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
