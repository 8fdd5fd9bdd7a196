"""The data sets that coterie knows by name, and how those of a hub are named. Torch-free."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from coterie.core.errors import UserError, nearest
from coterie.core.registry.papers import DataSet, papers


def packaged(package: str, name: str) -> dict[str, Any]:
    """Read a YAML file that stands in a package."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


@cache
def published(package: str) -> dict[str, Any]:
    """Read ``published.yaml`` of a paper's package: its tables, each as its comment says.

    Args:
        package: as it is imported.

    Example:
        >>> published("coterie.page")["table1"]["synthetic"]["page"]
        [92.67, 0.13, 96.24, 0.33]
    """
    return packaged(package, "published.yaml")


# Names of data sets on Hugging Face's hub, and where their copies are kept. Torch-free.

PREFIX = "hf:"

_FORM = re.compile(
    r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<config>[^:@#]+))?(?:@(?P<revision>[^:@#]+))?"
    r"(?:#(?P<split>\w[\w.-]*))?"
)


@dataclass(frozen=True)
class HubName:
    """A data set on the hub.

    Attributes:
        repository: ``OWNER/NAME``.
        config: one of its configurations; None where it has one only.
        revision: a commit, tag or branch; None for the newest.
        split: one of its splits; None where it has one only.
    """

    repository: str
    config: str | None = None
    revision: str | None = None
    split: str | None = None

    def __str__(self) -> str:
        marks = ((":", self.config), ("@", self.revision), ("#", self.split))
        return f"{PREFIX}{self.repository}" + "".join(f"{m}{v}" for m, v in marks if v)

    def folder(self, root: Path) -> Path:
        """Folder of its copy below the data root; another name, another folder."""
        return root / "hf" / quote(str(self).removeprefix(PREFIX), safe="@#=,")


def is_hub_name(name: str) -> bool:
    """Tell a name on the hub from those of known data sets and files.

    Example:
        >>> is_hub_name("hf:owner/name"), is_hub_name("owner/name")
        (True, False)
    """
    return name.startswith(PREFIX)


def hub_name(name: str) -> HubName:
    """Read ``hf:OWNER/NAME[:CONFIG][@REVISION][#SPLIT]``.

    Raises:
        UserError: it has another form.

    Example:
        >>> hub_name("hf:owner/name:small@1a2b#train")
        HubName(repository='owner/name', config='small', revision='1a2b', split='train')
    """
    found = _FORM.fullmatch(name)
    if found is None:
        raise UserError(
            f"'{name}' is no name on the hub: write hf:OWNER/NAME, and behind it :CONFIG, "
            "@REVISION and #SPLIT where they are needed, in this order"
        )
    return HubName(**found.groupdict())


def stem(name: str) -> str:
    """Short name of a data set, a file or a name on the hub, for folders of runs.

    Example:
        >>> stem("ml-1m"), stem("here/mine.csv.gz"), stem("hf:owner/name@1a2b#train")
        ('ml-1m', 'mine', 'name-train')
    """
    if not is_hub_name(name):
        return Path(name).name.split(".")[0]
    parsed = hub_name(name)
    words = (parsed.repository.split("/")[1], parsed.config, parsed.split)
    return re.sub(r"[^\w.-]", "-", "-".join(word for word in words if word))


# The data sets that coterie knows by name; imports nothing heavy.

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
