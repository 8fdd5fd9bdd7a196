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
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.core.data.samples.arrow_rows import DIGEST, KEY, ArrowRows
from coterie.core.data.sources.disk_room import Room
from coterie.core.data.sources.reading_progress import Progress
from coterie.core.data.sources.sample_forms import Arrays, Coder, Field, Form, Mark, Vocabulary
from coterie.core.data.sources.unfinished import Sink, Unfinished, alone, metadata, unfinished
from coterie.core.errors import UserError
from coterie.core.files import writing

ROWS = 1 << 16  # of a record batch
MARKED = 4  # of so many record batches one has a mark


class SampleWriter:
    """A file of record batches of `ROWS` rows, to be used as a context.

    It is whole when `finish` has been called.

    Args:
        path: the file.
        fields: of the samples.
        key: of what is made; with it, some record batches are marked, so that a file that was not
            finished can be gone on with.
        before: such a file, of the same key.
    """

    def __init__(
        self,
        path: Path,
        fields: Sequence[Field],
        *,
        key: str | None = None,
        before: Unfinished | None = None,
    ) -> None:
        self._path, self._fields, self._key = path, fields, key
        self._kinds = {each.name: np.dtype(each.dtype) for each in fields}
        self._batches = self._filled = 0
        self._begin(before)

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.close()

    def add(self, arrays: Arrays, mark: Mark | None = None, skip: int = 0) -> int:
        """Write rows, some of them later.

        Args:
            arrays: the fields.
            mark: the block that they were made of.
            skip: the first of them that are not written; may be more than there are.

        Returns:
            how many were not.
        """
        for each in (each for each in self._fields if each.kind == "ids"):
            if int(arrays[each.name].max(initial=0)) > np.iinfo(self._kinds[each.name]).max:
                self._widen(each.name)
        count = len(arrays[self._fields[0].name])
        skipped = at = min(skip, count)
        while at < count:
            if not self._filled:
                self._first = None if mark is None else (mark, at)
            size = min(len(self._rows[self._fields[0].name]) - self._filled, count - at)
            for name, rows in self._rows.items():
                rows[self._filled : self._filled + size] = arrays[name][at : at + size]
            self._filled += size
            at += size
            if self._filled == ROWS:
                self._write()
        return skipped

    def finish(self, says: Mapping[str, Any]) -> None:
        """Write the rows that wait, then what the file says of itself, as JSON."""
        self._write()
        nothing = self._batch({name: rows[:0] for name, rows in self._rows.items()})
        says = {**says, DIGEST: self._hash.hexdigest()}
        self._file.write_batch(nothing, custom_metadata={KEY: json.dumps(says)})
        self._file.close()
        self._sink.sync()
        self._sink.close()

    def _begin(self, before: Unfinished | None) -> None:
        self._hash = hashlib.sha256()  # of the samples: runs need not read the file to know it
        self._sink = Sink(self._path, there=before is not None)
        if before is not None:
            for each in before.schema():
                kind = getattr(each.type, "value_type", each.type)
                self._kinds[each.name] = np.dtype(kind.to_pandas_dtype())
        self._file = pa.ipc.new_file(pa.PythonFile(self._sink, "w"), self._schema())
        if before is not None:
            for batch, says in before.written():
                self._put(batch, says)
            self._batches = before.batches
            self._sink.go_on()
        self._rows = self._room()

    def _room(self) -> Arrays:
        """Make room for the rows of a record batch."""
        return {
            each.name: np.empty(
                (ROWS,) if each.flat else (ROWS, len(each.columns)), self._kinds[each.name]
            )
            for each in self._fields
        }

    def _write(self) -> None:
        """Write the rows that wait as a record batch."""
        if not self._filled:
            return
        says = None
        if self._key is not None and self._first is not None and self._batches % MARKED == 0:
            self._sink.sync()
            says = metadata(self._key, *self._first, self._sink.tell())
        batch = self._batch({name: rows[: self._filled] for name, rows in self._rows.items()})
        self._put(batch, says)
        self._batches, self._filled = self._batches + 1, 0

    def _put(self, batch: pa.RecordBatch, says: dict[bytes, bytes] | None = None) -> None:
        for column in batch.columns:
            flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
            self._hash.update(flat.to_numpy().data)
        self._file.write_batch(batch, custom_metadata=says)

    def _widen(self, name: str) -> None:
        """Go on with a field of ids in int32: what is written is copied, batch by batch."""
        self._file.close()
        self._sink.close()
        narrow = narrow_of(self._path)
        os.replace(self._path, narrow)
        self._kinds[name] = np.dtype(np.int32)
        self._rows[name] = self._rows[name].astype(np.int32)
        self._hash = hashlib.sha256()
        try:
            self._sink = Sink(self._path)
            self._file = pa.ipc.new_file(pa.PythonFile(self._sink, "w"), self._schema())
            written = ArrowRows(narrow)
            for batch in range(len(written.starts) - 1):
                views = written.views(batch)
                self._put(self._batch(views))
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


_VERSION = 1
_ELSEWHERE = "link the text files into a folder elsewhere, and read that (--data.root)"


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
    with writing(target, elsewhere=_ELSEWHERE):
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target):
            if (before := _found(target, made_of, vocabulary)) is None:
                _convert(sources, target, form, vocabulary, made_of)
    found = before or _found(target, made_of, vocabulary)
    if found is None:
        raise UserError(f"{target} was removed or replaced meanwhile: start again")
    return found


def _convert(
    sources: Sequence[Path],
    target: Path,
    form: Form,
    vocabulary: Vocabulary | None,
    made_of: dict[str, Any],
) -> None:
    """Convert; what a killed process left of the same is gone on with.

    An error removes what is written. A kill or an interruption does not: the next call goes on.
    """
    partial = target.with_name(f".{target.name}.part")
    narrow_of(partial).unlink(missing_ok=True)
    key = _key(made_of)
    before = unfinished(partial, key)
    coder = Coder(form, vocabulary)
    if before is not None and vocabulary is None:
        _see_again(coder.vocabulary, before, form)
    progress, room = Progress("converting", sources), Room(target, _row_bytes(form), _ELSEWHERE)
    try:
        with room.or_fault(), SampleWriter(partial, form.fields, key=key, before=before) as writer:
            skip = before.skip if before else 0
            for arrays in coder.read(sources, before.mark if before else None):
                room.check(coder.rows, progress.share(*coder.reached), partial)
                skip -= writer.add(arrays, coder.mark, skip)
                progress.tell(*coder.reached, coder.rows)
            if not coder.rows:
                raise UserError(f"{sources[0]}: no row is a sample: check file and options")
            unknown = {name: counts.tolist() for name, counts in coder.unknown.items()}
            own = coder.vocabulary.to_plain() if vocabulary is None else None
            found = {"rows": coder.rows, "left_out": coder.left_out}
            writer.finish({**made_of, **found, "unknown": unknown, "seen": own})
        os.replace(partial, target)
    except Exception:
        partial.unlink(missing_ok=True)
        raise


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


def narrow_of(path: Path) -> Path:
    """Where a file is while it is copied into wider ids."""
    return path.with_name(f"{path.name}.narrow")


def _see_again(vocabulary: Vocabulary, before: Unfinished, form: Form) -> None:
    """Note the ids that were written."""
    fields = [each for each in form.fields if each.kind == "ids"]
    for batch, _ in before.written():
        for each in fields:
            column = batch.column(each.name)
            ids = (column if each.flat else column.flatten()).to_numpy().astype(np.int64)
            vocabulary.add(each.name, ids.reshape(len(column), -1) - each.shift)


def _row_bytes(form: Form) -> int:
    return sum(np.dtype(each.dtype).itemsize * len(each.columns) for each in form.fields)


def _key(made_of: dict[str, Any]) -> str:
    """Of what an unfinished file must be made, to be gone on with."""
    how = [made_of, ROWS, pa.__version__]
    return hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()


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
    return {
        "version": _VERSION,
        "sources": [[source.name, *_stamp(source)] for source in sources],
        "form": form.to_plain(),
        "vocabulary": None if vocabulary is None else vocabulary.digest(),
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
