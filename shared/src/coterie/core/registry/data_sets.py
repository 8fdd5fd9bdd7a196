"""The data sets that coterie knows by name; imports nothing heavy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.core.errors import UserError, nearest
from coterie.core.registry.published import packaged


@dataclass(frozen=True)
class DataSet:
    """A data set that is known by name.

    Attributes:
        name: what the user types; also the folder below the data root.
        about: one line.
        terms: what its owners allow.
        core: k of the k-core filter that the literature uses with it; 0 for samples.
        files: alternative names (or patterns) of the file that tells that the set is there, each
            also as ``.gz``; none if generated.
        reader: ``module:function``. Of interactions: it makes
            `coterie.core.data.interactions.interactions.Interactions` of the folder. Of samples: it
            makes the rows that ``coterie data NAME`` shows, dicts with ``part`` and ``samples``.
        url: the official archive.
        md5: its published digest where it never changes; otherwise the ``.md5`` file beside the
            archive is asked.
        by_hand: where there is no archive, how to come by the files.
        kind: ``interactions`` of users with items, for recommenders, or labelled ``samples``
            (images, text), which the papers that add them read; archives of these stay packed.
    """

    name: str
    about: str
    terms: str
    core: int
    files: tuple[str, ...] = ()
    reader: str = ""
    url: str = ""
    md5: str = ""
    by_hand: str = ""
    kind: Literal["interactions", "samples"] = "interactions"


DATA_SETS: dict[str, DataSet] = {
    name: DataSet(name=name, **(entry | {"files": tuple(entry.get("files", ()))}))
    for name, entry in packaged("coterie.core.registry", "data_sets.yaml").items()
}


def data_sets() -> dict[str, DataSet]:
    """Find all data sets by name: those of core, then those that installed papers add."""
    from coterie.core.registry.papers import papers

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
