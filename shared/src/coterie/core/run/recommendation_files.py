"""Files of recommendations, in the format that their suffix names."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.files import write_bytes


@dataclass
class Recommendations:
    """A table of recommendations: a row is an item recommended to a user, with its rank and score.

    The columns are named as in the file, and are of one length.
    """

    user: list[str] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    item: list[str] = field(default_factory=list)
    score: list[float] = field(default_factory=list)

    def add(self, user: str, rank: int, item: str, score: float) -> None:
        """Append a row."""
        self.user.append(user)
        self.rank.append(rank)
        self.item.append(item)
        self.score.append(score)

    def columns(self) -> dict[str, list[Any]]:
        """Values by column."""
        return {name: getattr(self, name) for name in ("user", "rank", "item", "score")}


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
    encode, packed = _format(path)
    content = encode(table)
    # Without the time of packing: the same table is the same bytes.
    write_bytes(path, gzip.compress(content, mtime=0) if packed else content)


def _format(path: Path) -> tuple[Callable[[Recommendations], bytes], bool]:
    """How a table is encoded, and whether the file is gzipped."""
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


def _separated(table: Recommendations, mark: str) -> bytes:
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, delimiter=mark, lineterminator="\n")
    columns = table.columns()
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return lines.getvalue().encode()


def _csv(table: Recommendations) -> bytes:
    return _separated(table, ",")


def _tsv(table: Recommendations) -> bytes:
    return _separated(table, "\t")


def _json_lines(table: Recommendations) -> bytes:
    columns = table.columns()
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _parquet(table: Recommendations) -> bytes:
    import pyarrow as pa  # heavy
    from pyarrow import parquet

    kinds = {"user": pa.string(), "rank": pa.int64(), "item": pa.string(), "score": pa.float64()}
    sink = io.BytesIO()
    parquet.write_table(pa.table(table.columns(), schema=pa.schema(list(kinds.items()))), sink)
    return sink.getvalue()


_FORMATS = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
