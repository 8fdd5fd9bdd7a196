"""Tiny-ImageNet-200 in its official layout: folders of JPEG files by class.

Le and Yang, Tiny ImageNet Visual Recognition Challenge, 2015.
"""

from __future__ import annotations

import hashlib
import io
import logging
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from coterie.core.errors import UserError
from coterie.core.files import replacing
from coterie.core.registry.data_sets import find_file
from coterie.page.data.archive import files_in
from coterie.page.data.task import Labelled
from coterie.page.tasks import TASKS

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


_NAME = "tiny-imagenet-200"
_FILES = next(entry.files for entry in TASKS if entry.name == _NAME)
_TEXTS = ("wnids.txt", "val_annotations.txt")
_SIDE = 64


def read(folder: Path) -> tuple[Labelled, Labelled]:
    """Read the training and the validation set; the official test set has no labels.

    Decoded pictures are kept, see `coterie.page.data.tiny_imagenet.decoded`.

    Args:
        folder: has ``wnids.txt``, ``train`` and ``val``, or a folder ``tiny-imagenet-200`` of
            them, or a ``.zip`` or ``.tar.gz`` of it.

    Returns:
        Training and validation samples, ``x`` ``(n, 3, 64, 64)`` uint8, ordered by path; class
        numbers follow ``wnids.txt``.

    Raises:
        UserError: a file is missing or damaged, or a picture has no label.
    """
    found = find_file(folder, *_FILES)
    if found is None:
        raise UserError(f"there is no Tiny-ImageNet in {folder}: put {_NAME}.zip there")
    source = found.parent if found.name == "wnids.txt" else found
    arrays = decoded(_NAME, source, lambda: _decode(source))
    n_classes = int(arrays.pop("n_classes"))
    made = {name: torch.from_numpy(values) for name, values in arrays.items()}
    train, val = (Labelled(made[f"{p}_x"], made[f"{p}_y"], n_classes) for p in ("train", "val"))
    return train, val


def counts(folder: Path) -> list[dict[str, Any]]:
    """Count the samples, for ``coterie data tiny-imagenet-200``."""
    parts = read(folder)
    return [part.counts(name) for name, part in zip(("train", "val"), parts, strict=True)]


def _decode(source: Path) -> Arrays:
    texts: dict[str, str] = {}
    pictures: dict[str, dict[PurePosixPath, bytes]] = {"train": {}, "val": {}}
    for path, content in files_in(source, _wanted):
        if path.name in _TEXTS:
            texts[path.name] = content.decode("utf-8", "replace")
        else:
            pictures[_part(path)][path] = content
    for name in _TEXTS:
        if name not in texts:
            raise UserError(f"{source} has no {name}: fetch {_NAME}.zip again")
    number = {wnid: k for k, wnid in enumerate(texts["wnids.txt"].split())}
    label_of = _annotations(texts["val_annotations.txt"], source)
    arrays: Arrays = {"n_classes": np.asarray(len(number))}
    for part, files in pictures.items():
        if not files:
            raise UserError(f"{source} has no pictures in {part}: fetch {_NAME}.zip again")
        classes = {
            path: path.parts[-3] if part == "train" else label_of.get(path.name, "")
            for path in sorted(files)
        }
        arrays[f"{part}_y"] = _numbers(classes, number, source)
        arrays[f"{part}_x"] = _pixels(list(classes), files, source)
    return arrays


def _wanted(path: PurePosixPath) -> bool:
    return path.name in _TEXTS or (path.suffix == ".JPEG" and bool(_part(path)))


def _part(path: PurePosixPath) -> str:
    """``train`` of train/<wnid>/images/<file>, ``val`` of val/images/<file>, else nothing."""
    if path.parts[-4:-3] == ("train",) and path.parts[-2] == "images":
        return "train"
    return "val" if path.parts[-3:-1] == ("val", "images") else ""


def _annotations(text: str, source: Path) -> dict[str, str]:
    rows = [line.split("\t") for line in text.splitlines() if line.strip()]
    if any(len(row) < 2 for row in rows):
        raise UserError(f"{source}: a line of val_annotations.txt is not FILE<TAB>CLASS<TAB>…")
    return {row[0]: row[1] for row in rows}


def _numbers(classes: dict[PurePosixPath, str], number: dict[str, int], source: Path) -> np.ndarray:
    for path, name in classes.items():
        if name not in number:
            why = f"its class '{name}' is not in wnids.txt" if name else "it has no annotation"
            raise UserError(f"{source}: {path} has no label, {why}")
    return np.array([number[name] for name in classes.values()], dtype=np.int64)


def _pixels(
    paths: list[PurePosixPath], files: dict[PurePosixPath, bytes], source: Path
) -> np.ndarray:
    pixels = np.empty((len(paths), 3, _SIDE, _SIDE), dtype=np.uint8)
    for row, path in zip(pixels, paths, strict=True):
        try:
            with Image.open(io.BytesIO(files[path]), formats=("JPEG",)) as image:
                if image.size != (_SIDE, _SIDE):
                    raise UserError(f"{source}: {path} has {image.size} pixels, not 64 x 64")
                # Some pictures are grey.
                row[:] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            raise UserError(f"{source}: {path} is no picture ({error})") from None
    return pixels
