"""Read files from a folder, a tar or a zip alike; nothing is unpacked."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from coterie.core.errors import UserError

_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)


def files_in(
    source: Path, wanted: Callable[[PurePosixPath], bool]
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the paths and contents of the wanted files, in the archive's order.

    Args:
        source: a folder, a ``.zip``, or a tar, compressed or not. A folder's files come by
            ascending path, relative to it.
        wanted: tells by the path inside ``source``.

    Raises:
        UserError: the archive is damaged, or a file cannot be read.
    """
    try:
        for name, read in _members(source):
            if wanted(name):
                yield name, read()
    except _DAMAGE as error:
        raise UserError(f"{source} is damaged ({error}): fetch it again") from None
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror or error})") from None


def _members(source: Path) -> Iterator[tuple[PurePosixPath, Callable[[], bytes]]]:
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file():
                yield PurePosixPath(path.relative_to(source).as_posix()), path.read_bytes
    elif source.suffix == ".zip":
        with zipfile.ZipFile(source) as zipped:
            for entry in zipped.infolist():
                if not entry.is_dir():
                    yield PurePosixPath(entry.filename), partial(zipped.read, entry)
    else:
        with tarfile.open(source) as tarred:
            for member in tarred:
                if member.isfile() and (content := tarred.extractfile(member)):
                    yield PurePosixPath(member.name), content.read
