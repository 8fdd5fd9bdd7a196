"""Load a data set by name or path; fetch its official archive if it is missing."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from rich.progress import wrap_file

from coterie.core.data.interactions.canonical import canonical, is_as_exported
from coterie.core.data.interactions.interactions import Interactions, k_core
from coterie.core.data.sources.file_forms import ARROW, JSON, PARQUET, TEXT
from coterie.core.data.sources.sample import generate
from coterie.core.data.sources.text_files import existing
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import data_root, data_set, data_sets, default_core, find_file
from coterie.core.registry.papers import DataSet, papers
from coterie.core.registry.papers import load as imported
from coterie.core.settings.sections import DataSettings
from coterie.core.terminal import console

_TIMEOUT_S = 10.0
_NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


def download(entry: DataSet, root: Path) -> Path:
    """Download a data set into ``root / entry.name``; return that folder.

    A zip of interactions is unpacked; an archive of samples stays as it is. It is compared with
    the known MD5 digest, or with the ``.md5`` file beside it; where neither is there, with the
    checksums inside a zip. Everything happens in a temporary folder of ``root`` that takes the
    final name at the end.

    Raises:
        UserError: if there is no archive or no network, the digest is wrong, or ``root`` cannot
            be written; says which file to fetch from where and where to put it.
    """
    target = root / entry.name
    if not entry.url:
        what = "its files" if entry.kind == "samples" else f"{entry.files[0]} (or .gz)"
        raise UserError(
            f"data set '{entry.name}' cannot be downloaded: put {what} into {target} "
            f"({entry.by_hand})"
        )
    by_hand = f"download {entry.url} and {_instruction(entry, target)}"
    if target.exists():
        raise UserError(f"{target} is there but has no {_telling(entry)}: {by_hand}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=root) as temporary:
            folder = Path(temporary) / "packed"
            folder.mkdir()
            archive = folder / PurePosixPath(urlsplit(entry.url).path).name
            _fetch(entry, archive)
            _check_digest(entry, archive)
            if entry.kind == "interactions":
                folder = _unpack(entry, archive, Path(temporary) / "files")
            elif archive.suffix == ".zip":
                _check_zip(archive)
            _place(folder, target, entry)
    except _NETWORK_ERRORS as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"data set '{entry.name}' is not in {root}, and no download ({reason}): {by_hand}"
        ) from None
    except zipfile.BadZipFile as error:
        raise UserError(f"the archive of '{entry.name}' is damaged ({error}): {by_hand}") from None
    except OSError as error:
        raise UserError(
            f"cannot write to {root} ({error.strerror}): choose another folder by --data_root"
        ) from None
    return target


def _telling(entry: DataSet) -> str:
    return " or ".join(entry.files) if entry.kind == "samples" else entry.files[0]


def _instruction(entry: DataSet, target: Path) -> str:
    if entry.kind == "samples":
        return f"put it, packed or unpacked, into {target}"
    return f"unpack it so that {target}/{entry.files[0]} is there"


def _fetch(entry: DataSet, archive: Path) -> None:
    with urllib.request.urlopen(entry.url, timeout=_TIMEOUT_S) as response:
        size = int(response.headers.get("Content-Length") or 0)
        bar = wrap_file(
            response,
            total=size,
            description=f"Downloading {entry.name}",
            console=console(stderr=True),
        )
        with bar as source, archive.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    if size and archive.stat().st_size != size:
        raise ConnectionError("the connection ended before the whole file had come")


def _check_digest(entry: DataSet, archive: Path) -> None:
    wanted = entry.md5 or _published_digest(entry.url + ".md5")
    found = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    if wanted and wanted != found:
        raise UserError(
            f"the digest of {entry.url} is {found}, not {wanted} as published: try again later, "
            "or fetch it by hand if its owners have changed it"
        )


def _published_digest(url: str) -> str:
    """Read the digest from a ``.md5`` file; empty where there is no such file."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            words = response.read(4096).decode("ascii", "replace").replace("=", " ").split()
    except urllib.error.HTTPError:
        return ""
    digests = [word.lower() for word in words if len(word) == 32]
    return digests[0] if digests else ""


def _check_zip(archive: Path) -> None:
    with zipfile.ZipFile(archive) as content:
        if damaged := content.testzip():
            raise zipfile.BadZipFile(f"{damaged} does not match its checksum")


def _unpack(entry: DataSet, archive: Path, folder: Path) -> Path:
    """Unpack and return the folder that holds the interactions file."""
    _check_zip(archive)
    with zipfile.ZipFile(archive) as content:
        content.extractall(folder)
    for candidate in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        if find_file(candidate, *entry.files):
            return candidate
    raise zipfile.BadZipFile(f"it has no {entry.files[0]}")


def _place(unpacked: Path, target: Path, entry: DataSet) -> None:
    try:
        os.replace(unpacked, target)
    except OSError:
        # Another process may have put the same data set there in the meantime.
        if not find_file(target, *entry.files):
            raise


# Load a data set by name or path.

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
    return k_core(load_all(settings, targets), core_of(settings))


def core_of(settings: DataSettings) -> int:
    """The k of the k-core filter: of the settings, or what the literature uses with the data."""
    core = settings.min_interactions
    return default_core(settings.name) if core is None else core


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
    return highly_rated(_load(str(name_or_path), root, columns, targets), min_rating)


def highly_rated(found: Interactions, least: float | None) -> Interactions:
    """Keep the rows with a rating of ``least`` or more; None keeps all.

    Raises:
        UserError: there are no ratings, or none is high enough.
    """
    if least is None:
        return found
    if found.rating is None:
        raise UserError(
            f"{found.source} has no ratings: leave --data.min_rating out, or name the column of a "
            "file of yours by --data.columns rating=COLUMN"
        )
    kept = found.rating >= least
    if not bool(kept.any()):
        highest = float(found.rating.max())
        raise UserError(
            f"{found.source} has no rating of {least:g} or more (the highest is {highest:g}): "
            "choose a lower --data.min_rating"
        )
    return found.without(~kept, f"rated below {least:g}").renumbered()


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
