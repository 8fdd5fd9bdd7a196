"""Turn big CSV files into Arrow files, from which samples are streamed.

The result is an ordinary Arrow IPC *file*: record batches of 65,536 rows, each field a list of
fixed size (`coterie.core.data.samples.arrow_rows` views it without a copy), and a last record batch
without rows, whose metadata say as JSON what the file was made of. They cannot stand in the schema,
which is written before the first row is read.

`pyarrow.ipc.open_file` reads it, and whatever builds on Arrow. Hugging Face's
``datasets.Dataset.from_file`` does not (5.2 reads *streams* only); ``datasets.Dataset(table)``
takes the table of ``pyarrow.ipc.open_file(pyarrow.memory_map(path)).read_all()``, and
``load_dataset("arrow", data_files=path)`` copies the file into its cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.core.data.samples.arrow_rows import ArrowRows
from coterie.core.data.sources.sample_forms import Arrays, Coder, Field, Form, Vocabulary
from coterie.core.errors import UserError
from coterie.core.files import replacing, writing

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


log = logging.getLogger(__name__)

_VERSION = 1


@dataclass(frozen=True)
class Converted:
    """Samples in an Arrow file.

    Attributes:
        rows: the file.
        count: number of samples.
        vocabulary: of this file if it is that of the training set, else that which was given.
        unknown: by field of ids, how many ids of each column the given vocabulary lacks.
        left_out: number of rows that became no samples.
    """

    rows: ArrowRows
    count: int
    vocabulary: Vocabulary
    unknown: dict[str, list[int]]
    left_out: int = 0


def convert(
    sources: Sequence[Path],
    target: Path,
    form: Form,
    *,
    vocabulary: Vocabulary | None = None,
    about: Mapping[str, Any] | None = None,
) -> Converted:
    """Convert CSV files, or find that they have been converted before.

    Memory does not grow with the rows. The result takes the place of ``target`` when it is whole.

    Args:
        sources: one after the other.
        target: the Arrow file.
        form: what is made of the rows.
        vocabulary: that of the training set, where this is not it: other ids become 0.
        about: JSON that the file is to hold, such as what ``form.transform`` depends on.

    Raises:
        UserError: as `coterie.core.data.sources.csv_blocks.csv_blocks` and `Form.values`; no row is
            kept; or the file cannot be written.
    """
    made_of = json.loads(json.dumps(_made_of(sources, form, vocabulary, about)))
    if (before := _found(target, made_of, vocabulary)) is not None:
        return before
    log.info("converting %s", ", ".join(str(source) for source in sources))
    with writing(target, elsewhere="choose another folder for converted files"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            coder = Coder(form, vocabulary)
            with SampleWriter(temporary, form.fields) as writer:
                for arrays in coder.read(sources):
                    writer.add(arrays)
                if not coder.rows:
                    raise UserError(f"{sources[0]}: no row is a sample: check file and options")
                unknown = {name: counts.tolist() for name, counts in coder.unknown.items()}
                own = coder.vocabulary.to_plain() if vocabulary is None else None
                found = {"rows": coder.rows, "left_out": coder.left_out}
                writer.finish({**made_of, **found, "unknown": unknown, "seen": own})
    return Converted(
        ArrowRows(target), coder.rows, coder.vocabulary, unknown, left_out=coder.left_out
    )


def gather(
    sources: Sequence[Path], form: Form, *, vocabulary: Vocabulary | None = None
) -> tuple[Arrays, Coder]:
    """Read CSV files into memory: the fields that `convert` would write.

    Raises:
        UserError: as `convert`.
    """
    coder = Coder(form, vocabulary)
    parts = list(coder.read(sources))
    if not coder.rows:
        raise UserError(f"{sources[0]}: no row is a sample: check file and options")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, coder


def described(path: Path) -> dict[str, Any] | None:
    """What a file says that it was made of; None where there is no whole file of this kind."""
    try:
        with pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_file(file)
            last = reader.num_record_batches - 1
            _, metadata = reader.get_batch_with_custom_metadata(last)
            found = json.loads(metadata[KEY])
    except (OSError, pa.ArrowInvalid, pa.ArrowIndexError, TypeError, KeyError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _made_of(
    sources: Sequence[Path],
    form: Form,
    vocabulary: Vocabulary | None,
    about: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """All that a conversion depends on; a file that says otherwise is stale."""
    words = None if vocabulary is None else json.dumps(vocabulary.to_plain(), sort_keys=True)
    return {
        "version": _VERSION,
        "sources": [[source.name, *_stamp(source)] for source in sources],
        "form": form.to_plain(),
        "vocabulary": None if words is None else hashlib.sha256(words.encode()).hexdigest(),
        "about": dict(about or {}),
    }


def _stamp(source: Path) -> tuple[int, int]:
    """Size and time of a file: another stamp, another file."""
    try:
        stat = source.stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{source} cannot be read ({reason}): check the path") from None
    return stat.st_size, stat.st_mtime_ns


def _found(
    target: Path, made_of: dict[str, Any], vocabulary: Vocabulary | None
) -> Converted | None:
    """A conversion of the same, made before."""
    says = described(target)
    if says is None or any(says.get(name) != value for name, value in made_of.items()):
        return None
    own = vocabulary or Vocabulary.from_plain(says["seen"])
    return Converted(ArrowRows(target), says["rows"], own, says["unknown"], says["left_out"])
