"""The data sets that coterie knows by name; imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path

from coterie.core.errors import UserError, nearest
from coterie.core.registry.papers import DataSet, papers
from coterie.core.registry.published import packaged

DATA_SETS: dict[str, DataSet] = {
    name: DataSet(name=name, **(entry | {"files": tuple(entry.get("files", ()))}))
    for name, entry in packaged("coterie.core.registry", "data_sets.yaml").items()
}


def data_sets() -> dict[str, DataSet]:
    """Find all data sets by name: those of core, then those that installed papers add."""
    added = (entry for paper in papers().values() for entry in paper.data_sets)
    return DATA_SETS | {entry.name: entry for entry in added}


def data_set(name: str) -> DataSet:
    """Look a data set up by name.

    Raises:
        UserError: for an unknown name; the nearest known one is named.
    """
    if name in DATA_SETS:
        return DATA_SETS[name]
    entries = data_sets()
    if name not in entries:
        raise UserError(
            f"data set '{name}' is neither a known name nor a file: {nearest(name, entries)}"
        )
    return entries[name]


def default_core(name: str) -> int:
    """Give the k of the k-core filter that the literature uses; 5 for a file of the user's own.

    Example:
        >>> default_core("ml-100k"), default_core("my.csv")
        (10, 5)
    """
    entry = DATA_SETS.get(name) or data_sets().get(name)
    return 5 if entry is None else entry.core


def data_root(root: str | Path | None = None) -> Path:
    """Folder of the data sets: ``root``, else $COTERIE_DATA, else ~/.cache/coterie."""
    return Path(root or os.environ.get("COTERIE_DATA") or "~/.cache/coterie").expanduser()


def find_file(folder: Path, *files: str) -> Path | None:
    """Find the first of the files that is in the folder, as it is or as ``.gz``.

    Args:
        folder: need not exist.
        files: names relative to it, or patterns (``*.tar.gz``).
    """
    for name in files:
        for pattern in (name, f"{name}.gz"):
            found = sorted(path for path in folder.glob(pattern) if path.is_file())
            if found:
                return found[0]
    return None
