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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.core.data.samples.arrow_rows import ArrowRows
from coterie.core.data.sources.arrow_writer import KEY, SampleWriter
from coterie.core.data.sources.sample_forms import Arrays, Coder, Form, Vocabulary
from coterie.core.errors import UserError
from coterie.core.files import replacing, writing

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
