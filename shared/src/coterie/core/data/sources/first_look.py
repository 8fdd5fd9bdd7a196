"""A look at the start and the end of big files, before one of them is read for minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.core.data.sources.csv_blocks import Block, CsvForm, csv_blocks, fields_of
from coterie.core.data.sources.text_files import packed_as
from coterie.core.errors import UserError

_END = 1 << 16  # bytes


def look(path: Path, form: CsvForm, check: Callable[[Block], object]) -> None:
    """Read the first block of a file, and the last line where it is not packed.

    Args:
        path: the file.
        form: how it is written.
        check: raises what is wrong with a block.

    Raises:
        UserError: as `csv_blocks` and ``check``, or of the last line.
    """
    block = next(csv_blocks(path, form))
    check(block)
    if not packed_as(path):
        first = block.text.lstrip().split(b"\n", 1)[0]
        _check_last_line(path, form, len(_fields(first, form)))


def check_different(paths: Sequence[Path]) -> None:
    """Check that no file is a copy of another, by sizes, starts and ends.

    Raises:
        UserError: one is.
    """
    seen: dict[tuple[int, bytes, bytes], Path] = {}
    sizes = [path.stat().st_size for path in paths]
    for path, size in zip(paths, sizes, strict=True):
        if sizes.count(size) > 1:
            with path.open("rb") as file:
                start = file.read(_END)
                file.seek(max(size - _END, 0))
                same = seen.setdefault((size, start, file.read()), path)
            if same is not path:
                raise UserError(f"{path} is a copy of {same}: fetch the one that is wrong again")


def _check_last_line(path: Path, form: CsvForm, columns: int) -> None:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _END, 0))
        end = file.read()
    _, mark, last = end.rstrip().rpartition(b"\n")
    what = ""
    if form.whole_lines and not end.endswith(b"\n"):
        what = "it has no line end, it is cut off"
    elif mark and (found := len(_fields(last, form))) != columns:
        what = f"expected {columns} columns, found {found}"
    if what:
        raise UserError(f"{path}, last line: {what}; {form.remedy}")


def _fields(line: bytes, form: CsvForm) -> list[str]:
    return fields_of(line.decode("utf-8", "replace"), form.separator)
