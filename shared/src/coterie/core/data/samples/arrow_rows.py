"""Rows of an Arrow file as numpy views of the file itself, opened when they are first needed."""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coterie.core.errors import UserError
from coterie.core.files import sha256
from coterie.core.tensors.stacked import Handle

KEY = b"coterie"
"""In the metadata of the last record batch: what the file says of itself, as JSON."""
DIGEST = "digest"
"""The hash of the samples, in what a file says of itself."""

Views = dict[str, npt.NDArray[Any]]


class ArrowRows(Handle):
    """An Arrow IPC file (not a stream) of numbers, mapped into memory and read where it is touched.

    A column is a primitive type, a view ``(n,)``, or a list of fixed size w of one, a view
    ``(n, w)``. Pickled and copied by its path, so that is cheap and whoever gets it opens the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"ArrowRows({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrowRows) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def digest(self) -> str:
        """Give the hash that was noted as the samples were written; of other files, hash them."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return self._noted() or sha256(self.path)

    def _noted(self) -> str | None:
        reader = self._opened.reader
        if not reader.num_record_batches:
            return None
        _, says = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        if says is None or KEY not in says:
            return None
        found = json.loads(says[KEY]).get(DIGEST)
        return found if isinstance(found, str) else None

    @cached_property
    def _opened(self) -> _Opened:
        return _open(self.path)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """First row of each record batch, and the number of rows, ``(batches + 1,)``."""
        return self._opened.starts

    @property
    def schema(self) -> pa.Schema:
        """Columns and metadata."""
        return self._opened.reader.schema

    def views(self, batch: int, fields: tuple[str, ...] | None = None) -> Views:
        """Columns of a record batch by its number, read-only: those of some names, or all.

        Raises:
            UserError: there is no such column, or it cannot be viewed as numbers.
        """
        columns = self._opened.reader.get_batch(batch)
        names = columns.schema.names if fields is None else fields
        if missing := sorted(set(names) - set(columns.schema.names)):
            raise UserError(f"{self.path} has no column '{missing[0]}': delete it to convert again")
        return {name: self._view(name, columns.column(name)) for name in names}

    def take(self, rows: npt.NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Views:
        """Copy rows by their numbers, ``(n,)``, in that order; ``fields`` as for `views`."""
        found = {
            name: np.empty((len(rows), *view.shape[1:]), view.dtype)
            for name, view in self.nothing(fields).items()
        }
        batches = np.searchsorted(self.starts, rows, side="right") - 1
        for batch in np.unique(batches).tolist():
            here = batches == batch
            for name, view in self.views(batch, fields).items():
                found[name][here] = view[rows[here] - self.starts[batch]]
        return found

    def nothing(self, fields: tuple[str, ...] | None = None) -> Views:
        """Views of no rows, by the columns' types; ``fields`` as for `views`."""
        found: Views = {}
        for name in self.schema.names if fields is None else fields:
            kind, shape = self.schema.field(name).type, [0]
            if pa.types.is_fixed_size_list(kind):
                kind, shape = kind.value_type, [0, kind.list_size]
            found[name] = np.empty(shape, kind.to_pandas_dtype())
        return found

    def expect(self, views: Views) -> None:
        """Ask the system to read ahead what some views show."""
        self._advise("MADV_WILLNEED", views)

    def forget(self, views: Views) -> None:
        """Tell the system that what some views show need not stay mapped; they remain valid."""
        self._advise("MADV_DONTNEED", views)

    def _view(self, name: str, column: pa.Array) -> npt.NDArray[Any]:
        width: tuple[int, ...] = ()
        if column.null_count == 0 and pa.types.is_fixed_size_list(column.type):
            width = (column.type.list_size,)
            column = column.flatten()
        try:
            found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=True)
        except pa.ArrowInvalid:
            what = f"column '{name}' of {self.path} is {column.type}, or has gaps"
            raise UserError(f"{what}: only numbers can be streamed") from None
        return found.reshape(-1, *width)

    def _advise(self, how: str, views: Views) -> None:
        advice = getattr(mmap, how, None)
        if advice is None or not any(view.size for view in views.values()):
            return  # an operating system without advice does without
        opened = self._opened
        places = [view.__array_interface__["data"][0] for view in views.values()]
        ends = [at + view.nbytes for at, view in zip(places, views.values(), strict=True)]
        first = (min(places) - opened.address) // mmap.PAGESIZE * mmap.PAGESIZE
        opened.memory.madvise(advice, first, max(ends) - opened.address - first)


@dataclass(frozen=True)
class _Opened:
    memory: mmap.mmap
    address: int
    reader: pa.ipc.RecordBatchFileReader
    starts: npt.NDArray[np.int64]


def _open(path: Path) -> _Opened:
    try:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        whole = pa.py_buffer(memory)
        reader = pa.ipc.open_file(pa.BufferReader(whole))
        counts = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{path} cannot be read ({reason}): convert the data again") from None
    except (pa.ArrowInvalid, ValueError):  # an empty file cannot be mapped
        raise UserError(f"{path} is no whole Arrow file: delete it to convert again") from None
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
    return _Opened(memory, whole.address, reader, starts)
