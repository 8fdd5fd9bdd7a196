"""Data sets of Hugging Face, from its hub or as objects: kept as folders that runs read again.

What is kept is not looked for again, as with all data sets that are downloaded: the same name
gives the same rows until its folder is deleted, with or without a network.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.core.data.sources.part_folders import INFO, STATE, write_saved
from coterie.core.errors import UserError
from coterie.core.extras import require
from coterie.core.files import writing
from coterie.core.registry.data_sets import HubName, data_root, hub_name, is_hub_name

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


# Data sets of Hugging Face's hub: fetched once, by the package ``datasets``, and kept as a folder.
#
# What is kept is not looked for again, as with all data sets that are downloaded: the same name
# gives the same rows until its folder is deleted, with or without a network.

log = logging.getLogger(__name__)

_PROBE = 5.0  # seconds; the hub's own client tries for 23 before it gives up


def own_path(name: str, root: str | Path | None = None) -> Path:
    """Path of a file or folder of the user's own; what is on the hub is fetched if it is not here.

    Args:
        name: a path, or ``hf:OWNER/NAME[:CONFIG][@REVISION][#SPLIT]``.
        root: folder of the data sets; default $COTERIE_DATA, else ~/.cache/coterie.

    Raises:
        UserError: it is not here and cannot be fetched; or it has several configurations or
            splits, and the name says none.
    """
    if not is_hub_name(name):
        return Path(name).expanduser()
    wanted = hub_name(name)
    target = wanted.folder(data_root(root))
    if not all((target / file).is_file() for file in (INFO, STATE)):
        _fetch(wanted, target)
    return target


def _fetch(wanted: HubName, target: Path) -> None:
    datasets = _package(wanted)
    _check_reachable(wanted)
    try:
        commit = _commit(wanted)
        split = _split(datasets, wanted, commit)
        found = datasets.load_dataset(
            wanted.repository, wanted.config, revision=commit, split=split
        )
    except (MemoryError, UserError):
        raise
    except Exception as error:  # of four libraries, with classes of their own or none
        why = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(f"cannot fetch {wanted} ({why}): check name, revision and access") from None
    if not len(found):
        raise UserError(f"{wanted} has no rows: choose another split")
    with keeping(target.parent) as temporary:
        found.save_to_disk(str(temporary))
        about = {"name": str(wanted), "commit": commit}
        (temporary / "_hub.json").write_text(json.dumps(about) + "\n")
        put(temporary, target)
    log.info("fetched %s at commit %s into %s", wanted, commit or "?", target)


def _package(wanted: HubName) -> Any:
    require("datasets", str(wanted), "datasets")
    import datasets

    return datasets


def _check_reachable(wanted: HubName) -> None:
    """Ask the hub for a sign of life, once.

    Raises:
        UserError: there is none.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set"
    else:
        try:
            get_session().head(constants.ENDPOINT, timeout=_PROBE)
            return
        except Exception as error:  # of whichever library its client uses
            why = f"{constants.ENDPOINT}: {(str(error) or type(error).__name__).splitlines()[0]}"
    raise UserError(
        f"{wanted} is not here, and the hub cannot be reached ({why}): try again with a network, "
        "or give a folder made by save_to_disk"
    )


def _commit(wanted: HubName) -> str | None:
    """The commit that is meant now, so that splits and rows are of the same one."""
    from huggingface_hub import HfApi

    return HfApi().dataset_info(wanted.repository, revision=wanted.revision, timeout=60).sha


def _split(datasets: Any, wanted: HubName, commit: str | None) -> str:
    """The split that is asked for, or the only one.

    Raises:
        UserError: there are several configurations or splits and the name says none, or another.
    """
    kinds = datasets.get_dataset_config_names(wanted.repository, revision=commit)
    if wanted.config not in kinds and (wanted.config is not None or len(kinds) > 1):
        raise UserError(_choose(wanted, "configurations", kinds, replace(wanted, config=kinds[0])))
    splits = datasets.get_dataset_split_names(
        wanted.repository, wanted.config or kinds[0], revision=commit
    )
    if wanted.split is None and len(splits) == 1:
        return str(splits[0])
    if wanted.split not in splits:
        raise UserError(_choose(wanted, "splits", splits, replace(wanted, split=splits[0])))
    return str(wanted.split)


def _choose(wanted: HubName, what: str, names: list[str], one: HubName) -> str:
    some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"{wanted} has the {what} {some}: name one, as {one}"
