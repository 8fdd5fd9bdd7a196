"""Files of recommendations, in the format that their suffix names."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from coterie.core.errors import UserError
from coterie.core.files import writing_whole

if TYPE_CHECKING:
    import numpy as np

_AT_ONCE = 1 << 16  # rows that are Python values at a time


@dataclass(frozen=True)
class Recommendations:
    """A table of recommendations: a row is an item recommended to a user, with its rank and score.

    Attributes:
        user: ``(n,)`` int64, places in ``users``.
        rank: ``(n,)`` int64, from 1.
        item: ``(n,)`` int64, places in ``items``.
        score: ``(n,)`` float64.
        users: ids of users.
        items: ids of items.
    """

    user: np.ndarray
    rank: np.ndarray
    item: np.ndarray
    score: np.ndarray
    users: Sequence[str]
    items: Sequence[str]

    def __len__(self) -> int:
        return len(self.user)

    def columns(self, rows: slice = slice(None)) -> dict[str, list[Any]]:
        """Values by column, named as in the file: of all rows, or of some."""
        return {
            "user": [self.users[place] for place in self.user[rows].tolist()],
            "rank": self.rank[rows].tolist(),
            "item": [self.items[place] for place in self.item[rows].tolist()],
            "score": self.score[rows].tolist(),
        }

    def parts(self) -> Iterator[dict[str, list[Any]]]:
        """Values by column, some rows at a time."""
        for first in range(0, len(self), _AT_ONCE):
            yield self.columns(slice(first, first + _AT_ONCE))


def check_out(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed. Without torch.

    Raises:
        UserError: no format has this suffix, there is no such folder, it may not be written into,
            or the path is a folder.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a file in it, as {path / 'recs.csv'}")
    _format(path)
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UserError(f"there is no folder {path.parent}: make it, or choose another --out")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{path.parent} cannot be written into: choose another --out")


def write_recommendations(path: Path, table: Recommendations) -> None:
    """Write a table in the format of the file's suffix, whole or not at all.

    Args:
        path: ``.csv``, ``.tsv``, ``.jsonl`` or ``.ndjson`` (each also ``.gz``), or ``.parquet``;
            in any case.
        table: the rows.

    Raises:
        UserError: as `check_out`, or the disk is full; an old file stays.
    """
    check_out(path)
    write, packed = _format(path)
    with writing_whole(path) as file:
        if not packed:
            write(table, file)
            return
        # Without the time of packing: the same table is the same bytes.
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as archive:
            write(table, archive)  # type: ignore[arg-type]  # has what is used of it


def _format(path: Path) -> tuple[Callable[[Recommendations, BinaryIO], None], bool]:
    """How a table is written, and whether the file is gzipped."""
    name = path.name.lower()
    packed = name.endswith(".gz")
    suffix = Path(name.removesuffix(".gz")).suffix
    if packed and suffix == ".parquet":
        raise UserError(f"{path}: Parquet packs by itself, leave .gz out")
    if suffix == ".json":
        raise UserError(f"{path}: JSON is written one object a line, call the file .jsonl")
    if suffix not in _FORMATS:
        raise UserError(
            f"{path} names no format: let it end with {', '.join(_FORMATS)} "
            "(each but .parquet also with .gz)"
        )
    return _FORMATS[suffix], packed


def _separated(table: Recommendations, file: BinaryIO, mark: str) -> None:
    head: Any = table.columns(slice(0))
    for rows in [[head], *(zip(*part.values(), strict=True) for part in table.parts())]:
        lines = io.StringIO(newline="")
        csv.writer(lines, delimiter=mark, lineterminator="\n").writerows(rows)
        file.write(lines.getvalue().encode())


def _csv(table: Recommendations, file: BinaryIO) -> None:
    _separated(table, file, ",")


def _tsv(table: Recommendations, file: BinaryIO) -> None:
    _separated(table, file, "\t")


def _json_lines(table: Recommendations, file: BinaryIO) -> None:
    for part in table.parts():
        rows = (dict(zip(part, row, strict=True)) for row in zip(*part.values(), strict=True))
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        file.write(text.encode())


def _parquet(table: Recommendations, file: BinaryIO) -> None:
    import pyarrow as pa  # heavy
    from pyarrow import parquet

    def named(places: np.ndarray, names: Sequence[str]) -> pa.Array:
        return pa.array(names, pa.string()).take(pa.array(places))

    columns = {
        "user": named(table.user, table.users),
        "rank": pa.array(table.rank, pa.int64()),
        "item": named(table.item, table.items),
        "score": pa.array(table.score, pa.float64()),
    }
    parquet.write_table(pa.table(columns), file)


_FORMATS = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
