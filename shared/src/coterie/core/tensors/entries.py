"""The entries of append-only parts as files beside a checkpoint, each written once.

A file is named by its SHA-256 digest, so it never changes, and checkpoints share it: last and best
round, and a copy of the folder. A checkpoint holds the digests in the place of the entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.appended import Appended, Entry
from coterie.core.tensors.saved import load, save_by_digest

FOLDER = "entries"
_REFERENCE = "append-only entries, by digest"
_ENDING = ".pt"


def refer(plain: Any, folder: Path) -> Any:
    """Write the entries that are in no file yet below a folder; put references into their place.

    Raises:
        TypeError: an entry was written into since it was appended.
        OSError: the disk is full, or the folder cannot be written.
    """
    if isinstance(plain, Appended):
        return {_REFERENCE: [_kept(entry, folder / FOLDER).stem for entry in plain.entries()]}
    return _with(plain, lambda child: refer(child, folder))


def resolve(plain: Any, folder: Path) -> Any:
    """Read the entries to which a checkpoint in a folder refers, as `refer` made it.

    Raises:
        UserError: an entry is missing or damaged.
    """
    if _refers(plain):
        files = [folder / FOLDER / f"{digest}{_ENDING}" for digest in plain[_REFERENCE]]
        return Appended.kept((_read(file, number), file) for number, file in enumerate(files))
    return _with(plain, lambda child: resolve(child, folder))


def inline(plain: Any) -> Any:
    """Put lists in the place of append-only parts, for a file that holds all there is."""
    if isinstance(plain, Appended):
        return [tree.to_plain(entry) for entry in plain]
    return _with(plain, inline)


def clear(folder: Path, checkpoints: Iterable[Path]) -> None:
    """Remove the entries to which none of the checkpoints refers.

    Nothing is removed if one of them cannot be read: it may be mended yet.
    """
    if not (folder / FOLDER).is_dir():
        return
    wanted: set[str] = set()
    for path in checkpoints:
        if path.is_file():
            try:
                wanted.update(_digests(load(path)))
            except UserError:
                return
    for file in (folder / FOLDER).iterdir():
        if file.stem not in wanted:
            file.unlink(missing_ok=True)


def _kept(entry: Entry[Any], folder: Path) -> Path:
    entry.check()
    if entry.file is None or entry.file.parent != folder:
        # A view would be saved with all of what it is a view of.
        own = tree.map_tensors(_compact, entry.value)
        entry.file = save_by_digest(tree.to_plain(own), folder, _ENDING)
    return entry.file


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def _read(file: Path, number: int) -> Any:
    if not file.is_file():
        raise UserError(
            f"entry {number} of a checkpoint is missing ({file}): put back a copy of it, or train "
            "anew under another --run.name"
        )
    return load(file, digest=file.stem)


def _refers(plain: Any) -> bool:
    return isinstance(plain, dict) and plain.keys() == {_REFERENCE}


def _digests(plain: Any) -> Iterator[str]:
    if _refers(plain):
        yield from plain[_REFERENCE]
    elif isinstance(plain, (dict, list)):
        for child in plain.values() if isinstance(plain, dict) else plain:
            yield from _digests(child)


def _with(plain: Any, change: Any) -> Any:
    """Change the children of a dict or a list."""
    if isinstance(plain, dict):
        return {name: change(child) for name, child in plain.items()}
    if isinstance(plain, list):
        return [change(child) for child in plain]
    return plain
