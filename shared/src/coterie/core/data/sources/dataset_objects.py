"""Data sets and data frames as objects: a copy on the disk that runs read again."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.core.data.sources.saved_sets import INFO, write_saved
from coterie.core.errors import UserError
from coterie.core.files import writing
from coterie.core.registry.data_sets import data_root

_CHUNK = 1 << 20


def is_dataset(value: object) -> bool:
    """Whether a value is of the package ``datasets``, which is not imported for this."""
    return _is_of(value, "datasets")


def is_frame(value: object) -> bool:
    """Whether a value is a data frame of pandas or polars, or a table of pyarrow."""
    return _is_of(value, "pandas", "polars", "pyarrow") and len(getattr(value, "shape", ())) == 2


def _is_of(value: object, *packages: str) -> bool:
    return any(kind.__module__.split(".")[0] in packages for kind in type(value).__mro__)


def saved_copy(dataset: Any, root: str | Path | None = None) -> Path:
    """Save a ``datasets.Dataset`` or a frame below the data root; its path is as good as a file's.

    A copy is called by the digest of its rows, so equal data have one. Nothing of the process is
    needed afterwards: the run can be resumed, evaluated and served from the folder.

    Args:
        dataset: with its selection, order and columns as they are. The index of pandas is no
            column.
        root: folder of the data sets; default $COTERIE_DATA, else ~/.cache/coterie.

    Raises:
        UserError: it has splits, is a stream, has no rows, or cannot be written; or a column of it
            holds what has no form on the disk.

    Example:
        Train on an object::

            path = saved_copy(dataset)
            configure(paper, ["--data", str(path), "--data.columns", "user=u,item=i"])
    """
    table = _table(dataset) if is_frame(dataset) else None
    if table is None:
        _check(dataset)
    folder = data_root(root) / "datasets"
    with keeping(folder) as temporary:
        if table is None:
            dataset.save_to_disk(str(temporary))
        else:
            write_saved(table, temporary, secrets.token_hex(8))
        target = folder / _digest(temporary)
        put(temporary, target)
    return target


@contextmanager
def keeping(folder: Path) -> Iterator[Path]:
    """Make a folder below the data root, and give a new one within, see `temporary_in`.

    Raises:
        UserError: the disk is full, or there is no writing there.
    """
    with writing(folder, elsewhere="set $COTERIE_DATA to another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_in(folder) as temporary:
            yield temporary


@contextmanager
def temporary_in(folder: Path) -> Iterator[Path]:
    """Give a new folder, hidden within another, which is gone afterwards unless it was moved."""
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put(temporary: Path, target: Path) -> None:
    """Move a folder to its place in one step; one that is there already stays, being the same."""
    temporary.chmod(0o755)
    try:
        os.rename(temporary, target)
    except OSError:
        if not (target / INFO).is_file():
            raise


def _check(dataset: Any) -> None:
    kind = type(dataset).__name__
    if isinstance(dataset, dict):
        raise UserError(
            f"the {kind} has the splits {', '.join(map(str, dataset))}: give one of them, such as "
            f"dataset['{next(iter(dataset), 'train')}']"
        )
    if not hasattr(dataset, "save_to_disk"):
        raise UserError(
            f"an {kind} is read once only, and a run reads its data again: save it, or make a "
            "datasets.Dataset of it"
        )
    if not len(dataset):
        raise UserError("the data set has no rows: check what it was made of")


def _table(frame: Any) -> pa.Table:
    """A frame as a table of pyarrow.

    Raises:
        UserError: it has no rows, two columns of one name, or a column of several types.
    """
    kind = type(frame).__name__
    if not frame.shape[0]:
        raise UserError(f"the {kind} has no rows: check what it was made of")
    try:
        if _is_of(frame, "pandas"):
            return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        return frame if isinstance(frame, pa.Table) else frame.to_arrow()
    except (pa.ArrowException, ValueError, TypeError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"the {kind} is no table ({said}): give each column one type") from None


def _digest(folder: Path) -> str:
    """Digest of the Arrow files, which hold the rows and what the columns are."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.arrow")):
        found.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while part := file.read(_CHUNK):
                found.update(part)
    return found.hexdigest()[:32]
