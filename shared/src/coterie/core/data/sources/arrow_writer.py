"""Write samples into an Arrow file, record batch by record batch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.core.data.samples.arrow_rows import ArrowRows
from coterie.core.data.sources.sample_forms import Arrays, Field

ROWS = 1 << 16  # of a record batch
KEY = b"coterie"


class SampleWriter:
    """A file of record batches of `ROWS` rows, to be used as a context.

    It is whole when `finish` has been called.
    """

    def __init__(self, path: Path, fields: Sequence[Field]) -> None:
        self._path, self._fields = path, fields
        self._kinds = {each.name: np.dtype(each.dtype) for each in fields}
        self._parts: list[Arrays] = []
        self._waiting = 0
        self._file = pa.ipc.new_file(str(path), self._schema())

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, arrays: Arrays) -> None:
        """Write rows, some of them later."""
        for each in (each for each in self._fields if each.kind == "ids"):
            if int(arrays[each.name].max(initial=0)) > np.iinfo(self._kinds[each.name]).max:
                self._widen(each.name)
        self._parts.append(arrays)
        self._waiting += len(arrays[self._fields[0].name])
        if self._waiting >= ROWS:
            self._write(self._waiting // ROWS * ROWS)

    def finish(self, says: Mapping[str, Any]) -> None:
        """Write the rows that wait, then what the file says of itself, as JSON."""
        self._write(self._waiting)
        nothing = self._batch({name: np.empty(0) for name in self._kinds})
        self._file.write_batch(nothing, custom_metadata={KEY: json.dumps(says)})
        self._file.close()

    def _write(self, count: int) -> None:
        """Write the first ``count`` of the rows that wait."""
        if not count:
            return
        whole = {name: np.concatenate([part[name] for part in self._parts]) for name in self._kinds}
        for start in range(0, count, ROWS):
            stop = min(start + ROWS, count)
            self._file.write_batch(self._batch({n: v[start:stop] for n, v in whole.items()}))
        self._parts = [{name: values[count:].copy() for name, values in whole.items()}]
        self._waiting -= count

    def _widen(self, name: str) -> None:
        """Go on with a field of ids in int32: what is written is copied, batch by batch."""
        self._file.close()
        narrow = self._path.with_name(f"{self._path.name}.narrow")
        os.replace(self._path, narrow)
        self._kinds[name] = np.dtype(np.int32)
        self._file = pa.ipc.new_file(str(self._path), self._schema())
        try:
            written = ArrowRows(narrow)
            for batch in range(len(written.starts) - 1):
                views = written.views(batch)
                self._file.write_batch(self._batch(views))
                written.forget(views)
        finally:
            narrow.unlink(missing_ok=True)

    def _batch(self, arrays: Arrays) -> pa.RecordBatch:
        columns = []
        for each in self._fields:
            values = np.ascontiguousarray(arrays[each.name], self._kinds[each.name])
            flat = pa.array(values.ravel())
            width = len(each.columns)
            columns.append(flat if each.flat else pa.FixedSizeListArray.from_arrays(flat, width))
        return pa.record_batch(columns, schema=self._schema())

    def _schema(self) -> pa.Schema:
        kinds = {name: pa.from_numpy_dtype(kind) for name, kind in self._kinds.items()}
        return pa.schema(
            (
                each.name,
                kinds[each.name] if each.flat else pa.list_(kinds[each.name], len(each.columns)),
            )
            for each in self._fields
        )
