"""Trees on the disk: files that vouch for themselves, append-only entries, and a digest of a tree.

A file is what ``torch.save`` writes, so ``torch.load`` reads it too. It is a zip archive; its
comment, the last bytes, holds the SHA-256 of everything before. ``torch.load`` alone would not
notice a bit that was flipped on the disk.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.appended import Appended, Entry
from coterie.core.tensors.stacked import Handle, Stacked

_MARK = b"sha256:"
_COMMENT = len(_MARK) + 64
_LENGTH = _COMMENT.to_bytes(2, "little")  # the archive's last field, before its comment
_BLOCK = 1 << 20


def save(content: Any, path: Path) -> None:
    """Write tensors and plain values; a process killed in between leaves the old file whole.

    Args:
        content: what ``torch.load(weights_only=True)`` can read.
        path: file to replace.

    Raises:
        OSError: the disk is full, or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "two.pt"
        >>> save({"two": torch.ones(2)}, file)
        >>> load(file)
        {'two': tensor([1., 1.])}
    """
    with _partial(path) as partial:
        _write(content, partial)
        os.replace(partial, path)


def save_by_digest(content: Any, folder: Path, ending: str) -> Path:
    """Write as `save` does, into a file that is named by its digest; return the file.

    One of that name held the same already.
    """
    with _partial(folder / f"new{ending}") as partial:
        path = folder / f"{_write(content, partial)}{ending}"
        os.replace(partial, path)
        return path


def load(path: Path, digest: str | None = None) -> Any:
    """Read what `save` wrote, onto the CPU.

    Args:
        path: of the file.
        digest: that it must have; None for the one that it says itself.

    Raises:
        UserError: the file may not be read, or not every bit is as it was written.
    """
    try:
        how = _damage(path, digest)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot read {path} ({reason}): mend that, or name another run") from None
    if how is None:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whole, yet made by something else
            how = type(error).__name__
    raise UserError(
        f"checkpoint {path} is damaged ({how}): put back a copy of it, or train anew under "
        "another --run.name"
    )


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Name a file to write beside ``path``; it is gone afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
    finally:  # of a full disk or an interruption; renamed otherwise
        partial.unlink(missing_ok=True)


def _write(content: Any, path: Path) -> str:
    """Write a file and see it to the disk; return its digest."""
    with path.open("wb") as file:
        sealed = _Sealed(file)
        try:
            torch.save(content, sealed)  # type: ignore[arg-type]  # needs write and flush alone
        except RuntimeError:
            if sealed.error is not None:  # what torch makes of a full disk
                raise sealed.error from None
            raise
        digest = sealed.close()
        file.flush()
        os.fsync(file.fileno())
    return digest


class _Sealed:
    """Pass bytes on and hash them; hold the archive's last field back, which gets a comment."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self._held = file, hashlib.sha256(), b""
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Write all but the last bytes of what came so far."""
        end = bytes(data[-2:])
        if len(data) < 2:
            end = self._held + end
            whole: list[bytes | memoryview] = [end[:-2]]
        else:
            whole = [self._held, data[:-2]]
        try:
            for part in whole:
                self._hash.update(part)
                self._file.write(part)
        except OSError as error:
            self.error = error
            raise
        self._held = end[-2:]
        return len(data)

    def flush(self) -> None:
        """Do nothing: `save` flushes all at once."""

    def close(self) -> str:
        """Write the digest in place of the empty comment; return it."""
        assert self._held == b"\0\0", "torch.save writes no zip archive any more"
        digest = self._hash.hexdigest()
        self._file.write(_LENGTH + _MARK + digest.encode())
        return digest


def _damage(path: Path, wanted: str | None) -> str | None:
    """Say what is wrong with a file that must have a digest; None if nothing is."""
    left = path.stat().st_size - _COMMENT - len(_LENGTH)
    if left <= 0:
        return "it is cut short"
    found = hashlib.sha256()
    with path.open("rb") as file:
        while left and (block := file.read(min(left, _BLOCK))):
            found.update(block)
            left -= len(block)
        end = file.read()
    if not end.startswith(_LENGTH + _MARK):
        return "it has no digest: cut short, or of an older version"
    digest = found.hexdigest()
    if end != _LENGTH + _MARK + digest.encode() or wanted not in (None, digest):
        return "its digest is another"
    return None


# The entries of append-only parts as files beside a checkpoint, each written once.
#
# A file is named by its SHA-256 digest, so it never changes, and checkpoints share it: last and
# best round, and a copy of the folder. A checkpoint holds the digests in the place of the entries.

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


# One digest of a whole tree: equal for equal numbers, shapes, types and names, wherever it is.


def digest(values: Any) -> str:
    """Hash all leaves of a tree with their paths, types and shapes into 64 hexadecimal digits.

    What a tree names outside, such as a file, counts by its content, not by its path.

    Raises:
        TypeError: something in the tree is none of the known kinds.

    Example:
        >>> digest({"a": torch.ones(2)}) == digest({"a": torch.ones(2)})
        True
        >>> digest({"a": torch.ones(2)}) == digest({"a": torch.ones(2, 1)})
        False
    """
    found = hashlib.sha256()
    for path, leaf in tree.leaves(values):
        if isinstance(leaf, (Tensor, Stacked)):
            for name, tensor in tree.tensors({path: leaf}):
                found.update(f"{name}:{tensor.dtype} {tuple(tensor.shape)}\n".encode())
                found.update(content(tensor))
        else:
            word = leaf.digest() if isinstance(leaf, Handle) else repr(leaf)
            found.update(f"{path}={type(leaf).__name__} {word}\n".encode())
    return found.hexdigest()


def content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, on the CPU and without a copy where it lies there as it is."""
    plain = tensor.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    found: Any = plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(found)
