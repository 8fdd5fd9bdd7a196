"""Fetch an official archive: digest checked, in its place in one step or not at all."""

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
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from rich.progress import wrap_file

from coterie.core.errors import UserError
from coterie.core.registry.data_sets import find_file
from coterie.core.registry.papers import DataSet
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
