"""Load a data set by name or path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.core.data.interactions.canonical import canonical
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.interactions.kcore import k_core
from coterie.core.data.sources.download import download
from coterie.core.data.sources.exported_order import is_as_exported
from coterie.core.data.sources.file_forms import ARROW, JSON, PARQUET, TEXT
from coterie.core.data.sources.opening import existing
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import (
    data_root,
    data_set,
    data_sets,
    default_core,
    find_file,
)
from coterie.core.registry.papers import DataSet, papers
from coterie.core.registry.papers import load as imported
from coterie.core.settings.sections import DataSettings

_ENDINGS = (*TEXT, *JSON, *PARQUET, *ARROW, ".gz", ".bz2", ".xz", ".zip")


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


def load_filtered(settings: DataSettings, targets: bool = False) -> Interactions:
    """Load what the settings name, through the k-core filter that they or the literature choose.

    Raises:
        UserError: as `load`, or the filter leaves nothing.
    """
    core = settings.min_interactions
    core = default_core(settings.name) if core is None else core
    return k_core(load_all(settings, targets), core)


def load_all(settings: DataSettings, targets: bool = False) -> Interactions:
    """Load what the settings name, before the k-core filter.

    Raises:
        UserError: as `load`.
    """
    return load(settings.name, settings.root, settings.columns, settings.min_rating, targets)


def load(
    name_or_path: str | Path,
    root: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    min_rating: float | None = None,
    targets: bool = False,
) -> Interactions:
    """Load a data set by name, or a file of the user's own by path.

    Args:
        name_or_path: one of `coterie.core.registry.data_sets.data_sets`, the path of a file or of
            a folder of parts, or a name on the hub, as ``hf:OWNER/NAME``.
        root: folder of the data sets; default $COTERIE_DATA, else ~/.cache/coterie. A set that is
            missing there is downloaded from its official address.
        columns: of a file, see `coterie.core.data.sources.own_file.read_own`.
        min_rating: the lowest rating that counts as an interaction; None for any above 0.
        targets: ratings of a file are what is predicted, whatever their sign. In a known set 0 is
            no rating, so rows rated 0 or less never count.

    Raises:
        UserError: for an unknown name, a file that is missing and cannot be fetched, or a
            malformed one; or no rating is high enough.
    """
    found = _load(str(name_or_path), root, columns, targets)
    if min_rating is None:
        return found
    if found.rating is None:
        raise UserError(
            f"{found.source} has no ratings: leave --data.min_rating out, or name the column of a "
            "file of yours by --data.columns rating=COLUMN"
        )
    kept = found.rating >= min_rating
    if not bool(kept.any()):
        highest = float(found.rating.max())
        raise UserError(
            f"{found.source} has no rating of {min_rating:g} or more (the highest is {highest:g}): "
            "choose a lower --data.min_rating"
        )
    return found.without(~kept, f"rated below {min_rating:g}").renumbered()


def _load(
    name: str, root: str | Path | None, columns: Mapping[str, str] | None, targets: bool
) -> Interactions:
    if _is_path(name) and name not in data_sets():
        from coterie.core.data.sources.hub_sets import own_path  # pyarrow is heavy

        path = existing(own_path(name, root))
        from coterie.core.data.sources.own_file import read_own

        rows = read_own(path, columns, targets)
        return rows if is_as_exported(path, rows) else canonical(rows)
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
    """Find the folder of a data set that is not generated; download the set if it is missing.

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
    looks_so = "/" in name or "\\" in name or name == "-" or name.lower().endswith(_ENDINGS)
    return looks_so or Path(name).exists()


def _papers_with(entry: DataSet) -> str:
    found = [name for name, paper in papers().items() if entry in paper.data_sets]
    return " and ".join(found) or "other tasks"


def _listing(entry: DataSet, root: Path) -> Listing:
    folder = root / entry.name if entry.files else None
    present = folder is None or find_file(folder, *entry.files) is not None
    listing = Listing(entry.name, entry.about, entry.terms, present, folder)
    if not present or entry.kind != "interactions":
        return listing
    try:
        found = load(entry.name, root)
    except UserError as error:
        return replace(listing, problem=str(error))
    users, items = found.n_users, found.n_items
    return replace(listing, users=users, items=items, interactions=len(found))
