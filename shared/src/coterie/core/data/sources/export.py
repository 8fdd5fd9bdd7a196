"""Write interactions as a folder that coterie reads back: ``save_to_disk``'s, Parquet or CSV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from coterie.core.data.interactions.canonical import MARK, data_digest, exportable, mark_of
from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID, Interactions
from coterie.core.data.sources.hub_sets import temporary_in
from coterie.core.data.sources.part_folders import write_saved
from coterie.core.errors import UserError
from coterie.core.files import writing

Format = Literal["hf", "parquet", "csv"]

_TEXT = pa.large_string()  # an array of the other holds no more than 2 GB
_PARTS = {TRAIN: "train", VALID: "valid", TEST: "test"}
_ONLY_NAMED = ("split", "order", "domain")


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        folder: where it is.
        rows: how many.
        columns: names of the columns, each called by its role.
        lacks: what is known of the data and has no column.
    """

    folder: Path
    rows: int
    columns: tuple[str, ...]
    lacks: tuple[str, ...]

    @property
    def flags(self) -> str:
        """What a run reads it back by: nothing is filtered again."""
        named = [f"{name}={name}" for name in self.columns if name in _ONLY_NAMED]
        roles = f" --data.columns {','.join(named)}" if named else ""
        return f"--data {self.folder}{roles} --data.min_interactions 0"


def export(found: Interactions, folder: Path, form: Format = "hf") -> Exported:
    """Write interactions in their order; all of it or nothing.

    Args:
        found: as papers see them, filters applied.
        folder: a new or empty one.
        form: ``hf`` (as ``Dataset.save_to_disk`` writes), ``parquet`` or ``csv``.

    Raises:
        UserError: the folder is not empty or cannot be written, or CSV has no form for a genre.
    """
    columns = _columns(found)
    if form == "csv" and found.genres is not None:
        columns["genres"] = _piped(found, found.genres)
    table = pa.table(columns)
    folder = folder.expanduser()
    with writing(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is there and not empty: choose a new folder by --out")
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with temporary_in(folder.absolute().parent) as temporary:
            _WRITE[form](table, temporary, data_digest(exportable(found)))
            (temporary / MARK).write_text(mark_of(found))
            temporary.chmod(0o755)
            temporary.rename(folder.absolute())
    known = {"brands": found.brands, "profiles of users": found.user_features}
    lacks = tuple(name for name, values in known.items() if values is not None)
    return Exported(folder, len(table), tuple(table.column_names), lacks)


def _columns(found: Interactions) -> dict[str, pa.Array]:
    user, item = pa.array(found.user.numpy()), pa.array(found.item.numpy())

    def of_items(values: list[str]) -> pa.Array:
        return pa.array(values, _TEXT).take(item)

    columns = {"user": pa.array(found.user_names, _TEXT).take(user)}
    columns["item"] = of_items(_bare_items(found))
    time = pa.array(found.time.numpy())
    if found.positions:
        columns["order"] = time
    elif bool((found.time != 0).any()):  # otherwise the source has no times
        columns["time"] = time
    if found.rating is not None:
        columns["rating"] = pa.array(found.rating.numpy())
    if found.titles is not None:
        columns["title"] = of_items(found.titles)
    if found.genres is not None:
        columns["genres"] = pa.array(found.genres, pa.list_(_TEXT)).take(item)
    if found.split is not None:
        words = pa.array([_PARTS[place] for place in range(len(_PARTS))], _TEXT)
        columns["split"] = words.take(pa.array(found.split.numpy()))
    if found.domains is not None:
        columns["domain"] = of_items(found.domains)
    return columns


def _bare_items(found: Interactions) -> list[str]:
    """Ids of items without the domain that readers put before them.

    Raises:
        UserError: an id does not begin with its domain, so it could not be read back.
    """
    if found.domains is None:
        return found.item_names
    pairs = list(zip(found.item_names, found.domains, strict=True))
    odd = next((name for name, domain in pairs if not name.startswith(f"{domain}/")), None)
    if odd is not None:
        raise UserError(
            f"item '{odd}' of {found.source} is not called by its domain, which a file has no "
            "form for: it cannot be exported"
        )
    return [name[len(domain) + 1 :] for name, domain in pairs]


def _piped(found: Interactions, genres: list[list[str]]) -> pa.Array:
    odd = next((genre for row in genres for genre in row if "|" in genre), None)
    if odd is not None:
        raise UserError(f"genre '{odd}' holds a '|', which parts genres in CSV: use --format hf")
    words = pa.array(["|".join(row) for row in genres], _TEXT)
    return words.take(pa.array(found.item.numpy()))


def _parquet(table: pa.Table, folder: Path, _: str) -> None:
    from pyarrow import parquet

    parquet.write_table(table, folder / "interactions.parquet")


def _csv(table: pa.Table, folder: Path, _: str) -> None:
    from pyarrow import csv

    csv.write_csv(table, folder / "interactions.csv")


_WRITE: dict[Format, Callable[[pa.Table, Path, str], None]] = {
    "hf": write_saved,
    "parquet": _parquet,
    "csv": _csv,
}
FORMATS: tuple[Format, ...] = tuple(_WRITE)
