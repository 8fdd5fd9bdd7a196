"""Load a data set by name or path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.download import download
from coterie.core.data.sources.own_csv import read_csv
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import DataSet, data_root, data_set, data_sets, find_file
from coterie.core.registry.papers import load as imported
from coterie.core.registry.papers import papers

_ENDINGS = (".csv", ".tsv", ".txt", ".dat", ".gz")


@dataclass(frozen=True)
class Listing:
    """One line of ``coterie data``.

    Counts are None where the files are absent or unreadable, or hold no interactions.
    """

    name: str
    about: str
    terms: str
    present: bool
    folder: Path | None
    users: int | None = None
    items: int | None = None
    interactions: int | None = None
    problem: str = ""


def load(
    name_or_path: str | Path,
    root: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
) -> Interactions:
    """Load a data set by name, or a CSV file by path.

    Args:
        name_or_path: one of `coterie.core.registry.data_sets.names`, or the path of a CSV file.
        root: folder of the data sets; default $COTERIE_DATA, else ~/.cache/coterie. A set that is
            missing there is downloaded from its official address.
        columns: of a CSV file, see `coterie.core.data.sources.own_csv.read_csv`.

    Raises:
        UserError: for an unknown name, a file that is missing and cannot be fetched, or a
            malformed one.
    """
    name = str(name_or_path)
    if _is_path(name) and name not in data_sets():
        path = Path(name).expanduser()
        if not path.is_file():
            raise UserError(f"there is no file {path}: check the path")
        return read_csv(path, columns)
    entry = data_set(name)
    if entry.kind != "interactions":
        raise UserError(
            f"data set '{name}' holds labelled samples, not interactions of users with items: "
            f"choose another, such as ml-100k (it is for {_papers_with(entry)})"
        )
    if columns:
        raise UserError(f"'{name}' has its own columns: leave --data.columns out")
    if not entry.files:
        return generate()
    found: Interactions = imported(entry.reader)(data_folder(entry, root))
    return found


def data_folder(entry: DataSet, root: str | Path | None = None) -> Path:
    """Find the folder of a data set; download the set if it is missing.

    Args:
        entry: one that is not generated.
        root: as in `load`.

    Raises:
        UserError: it is missing and cannot be fetched; one line says what to put where.
    """
    folder = data_root(root) / entry.name
    return folder if find_file(folder, *entry.files) else download(entry, data_root(root))


def sample_counts(name: str, root: str | Path | None = None) -> list[dict[str, Any]]:
    """Count the samples of a data set's parts, one dict a part; none where it is generated.

    Raises:
        UserError: there is no such data set, it is missing and cannot be fetched, or malformed.
    """
    entry = data_set(name)
    if not entry.files:
        return []
    rows: list[dict[str, Any]] = imported(entry.reader)(data_folder(entry, root))
    return rows


def list_data(root: str | Path | None = None) -> list[Listing]:
    """List the known data sets, with counts where they are present; downloads nothing."""
    return [_listing(entry, data_root(root)) for entry in data_sets().values()]


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.endswith(_ENDINGS) or Path(name).is_file()


def _papers_with(entry: DataSet) -> str:
    found = [name for name, paper in papers().items() if entry in paper.data_sets]
    return " and ".join(found) or "other tasks"


def _listing(entry: DataSet, root: Path) -> Listing:
    folder = root / entry.name if entry.files else None
    present = folder is None or find_file(folder, *entry.files) is not None
    blank = Listing(entry.name, entry.about, entry.terms, present, folder)
    if not present or entry.kind != "interactions":
        return blank
    try:
        found = load(entry.name, root)
    except UserError as error:
        return Listing(entry.name, entry.about, entry.terms, present, folder, problem=str(error))
    return Listing(
        entry.name,
        entry.about,
        entry.terms,
        present,
        folder,
        found.n_users,
        found.n_items,
        len(found),
    )
