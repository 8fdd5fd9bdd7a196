"""Keep decoded pictures in the user's cache, under a name that changes with their source."""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from coterie.core.files import replacing

log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]
_DAMAGE = (OSError, ValueError, EOFError, zipfile.BadZipFile)


def cache_folder() -> Path:
    """Where decoded pictures are kept."""
    return Path("~/.cache/coterie/decoded").expanduser()


def decoded(name: str, source: Path, make: Callable[[], Arrays]) -> Arrays:
    """Load arrays from the cache, or make them and keep them there.

    They are kept as ``<name>-<place>-<state>.npz``, where the digests are of the path of the
    source and of the sizes and times of its files; those of an earlier state are removed. Where
    the cache cannot be written, they are made anew every time.

    Args:
        name: of the data set.
        source: archive or folder that they are made from.
        make: makes them.
    """
    place = f"{name}-{_digest([str(source.resolve())])}"
    path = cache_folder() / f"{place}-{_digest(_state(source))}.npz"
    if (kept := _load(path)) is not None:
        return kept
    arrays = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            np.savez(temporary, allow_pickle=False, **arrays)
        for old in path.parent.glob(f"{place}-*.npz"):
            if old != path:
                old.unlink(missing_ok=True)
    except OSError as error:
        log.warning("decoded pictures are not kept in %s: %s", path.parent, error.strerror)
    return arrays


def _load(path: Path) -> Arrays | None:
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in content.files}
    except _DAMAGE:
        return None


def _state(source: Path) -> Iterator[str]:
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    for path in files:
        status = path.stat()
        yield f"{path.relative_to(source)} {status.st_size} {status.st_mtime_ns}"


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()[:12]
