"""What samples are made of big CSV files: fields of the rows, checked, with ids in a vocabulary."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coterie.core.data.sources.csv_blocks import Block, CsvForm, Place, csv_blocks

Arrays = dict[str, npt.NDArray[Any]]
_MOST_IDS = 1 << 27  # a bit array of them is kept for every column


@dataclass(frozen=True)
class Field:
    """A field of samples.

    Attributes:
        name: of the field.
        columns: of the file, w of them from left to right.
        kind: ``ids`` (whole numbers from 0, which get a vocabulary), ``labels`` (0 or 1), or
            ``numbers`` (finite).
        dtype: in which the field is kept. Ids in ``uint16`` become ``int32`` where they need it.
        shift: is added to ids; 1 keeps 0 free for what the vocabulary lacks.
        dense: whether ids are numbered anew: those of the vocabulary, in ascending order, from 1.
            Then a vocabulary must be given for every file (see `survey`).
        flat: whether it is ``(n,)``, of one column, in place of ``(n, w)``.
    """

    name: str
    columns: tuple[str, ...]
    kind: Literal["ids", "labels", "numbers"]
    dtype: str
    shift: int = 0
    flat: bool = False
    dense: bool = False


@dataclass(frozen=True)
class Form:
    """How samples are made of the rows of a file.

    Attributes:
        fields: of the samples.
        csv: how the file is written, and what is read of it; None = a header, commas, and the
            fields' columns.
        transform: makes the fields' values, each ``(n, w)``, of a block; None = as the file has
            them. Ids are those before `Field.shift`.
        keep: which rows of a block become samples, ``(n,)`` bool; None = all.
        check: raises a `Block.fault` if the fields' values, all of them right for themselves, do
            not go together.
    """

    fields: tuple[Field, ...]
    csv: CsvForm | None = None
    transform: Callable[[Block], Arrays] | None = None
    keep: Callable[[Block], npt.NDArray[np.bool_]] | None = None
    check: Callable[[Block, Arrays], None] | None = None

    def values(self, block: Block) -> Arrays:
        """Make the fields of a block's rows, ids not yet coded.

        Raises:
            UserError: naming the line, for an id below 0 or far too large, a label that is neither
                0 nor 1, or a number that is not finite; or as `check` says.
        """
        found = (self.transform or partial(_as_they_are, self))(block)
        for each in self.fields:
            _check(block, each, found[each.name])
        if self.check is not None:
            self.check(block, found)
        if self.keep is not None:
            kept = self.keep(block)
            found = {name: values[kept] for name, values in found.items()}
        return {each.name: found[each.name] for each in self.fields}

    @property
    def layout(self) -> CsvForm:
        """How the file is written."""
        return self.csv or CsvForm(
            {
                column: pa.float32() if each.kind == "numbers" and not _whole(each) else pa.int64()
                for each in self.fields
                for column in each.columns
            }
        )

    def to_plain(self) -> list[Any]:
        """Say what a file of samples depends on, transforms by their names."""
        calls = [
            getattr(each, "__qualname__", None) for each in (self.transform, self.keep, self.check)
        ]
        fields = [
            [f.name, *f.columns, f.kind, f.dtype, f.shift, f.flat, f.dense] for f in self.fields
        ]
        return [fields, list(self.layout.reads), self.layout.names, *calls]


@dataclass
class Vocabulary:
    """Which ids each column of the fields of ids has.

    Attributes:
        seen: by field, for each column, ``(largest id + 1,)`` bool.
    """

    seen: dict[str, list[npt.NDArray[np.bool_]]] = field(default_factory=dict)
    _ranks: dict[str, list[npt.NDArray[np.int32]]] = field(default_factory=dict, repr=False)

    def add(self, name: str, ids: npt.NDArray[np.int64]) -> None:
        """Note ids, ``(n, w)``, of a field."""
        self._ranks.pop(name, None)
        columns = self.seen.setdefault(name, [np.zeros(0, bool) for _ in range(ids.shape[1])])
        for place, most in enumerate(ids.max(axis=0, initial=-1).tolist()):
            columns[place] = _longer(columns[place], most + 1)
            columns[place][ids[:, place]] = True

    def known(self, name: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Say which ids, ``(n, w)``, it has, ``(n, w)``."""
        found = np.zeros(ids.shape, bool)
        for place, seen in enumerate(self.seen[name]):
            inside = ids[:, place] < len(seen)
            found[inside, place] = seen[ids[inside, place]]
        return found

    def join(self, other: Vocabulary) -> Vocabulary:
        """Give the vocabulary of both: what is in either is in it."""
        both = Vocabulary({name: list(columns) for name, columns in self.seen.items()})
        for name, columns in other.seen.items():
            mine = both.seen.get(name, [np.zeros(0, bool)] * len(columns))
            both.seen[name] = [
                _longer(one, len(two)) | _longer(two, len(one))
                for one, two in zip(mine, columns, strict=True)
            ]
        return both

    def ranks(self, name: str) -> list[npt.NDArray[np.int32]]:
        """Place of each id among those that each column has, from 1; 0 for others."""
        if name not in self._ranks:  # of millions of ids, for each of several files
            self._ranks[name] = [np.cumsum(seen, dtype=np.int32) * seen for seen in self.seen[name]]
        return self._ranks[name]

    def digest(self) -> str:
        """Hash what it holds."""
        found = hashlib.sha256()
        for name, columns in sorted(self.seen.items()):
            found.update(f"{name} {[len(seen) for seen in columns]}".encode())
            for seen in columns:
                found.update(np.packbits(seen).tobytes())
        return found.hexdigest()

    def sizes(self, name: str, shift: int = 0) -> tuple[int, ...]:
        """Numbers of embeddings that the columns of a field need: largest id + 1, shifted."""
        return tuple(len(seen) + shift for seen in self.seen.get(name, []))

    def to_plain(self) -> dict[str, list[list[Any]]]:
        """Give it as plain values, packed."""
        return {
            name: [[len(seen), _packed(seen)] for seen in columns]
            for name, columns in self.seen.items()
        }

    @staticmethod
    def from_plain(plain: dict[str, list[list[Any]]]) -> Vocabulary:
        """Read what `to_plain` gave."""
        return Vocabulary(
            {
                name: [_unpacked(packed, count) for count, packed in columns]
                for name, columns in plain.items()
            }
        )


@dataclass(frozen=True)
class Mark:
    """The start of a block, and what was counted before it.

    Attributes:
        source: number of the file.
        place: in it.
        rows: samples that were made before.
        left_out: rows that were not kept.
        unknown: by field of ids, how many ids of each column the vocabulary lacked.
    """

    source: int
    place: Place
    rows: int
    left_out: int
    unknown: dict[str, list[int]]

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Mark:
        """Read what `dataclasses.asdict` gave."""
        return Mark(**{**plain, "place": Place(**plain["place"])})


class Coder:
    """Rows of files as samples, with their ids coded.

    Args:
        form: of the samples.
        vocabulary: that of the training file; None = this is the training file.

    Attributes:
        vocabulary: the given one, or the one that grows with the rows.
        unknown: by field of ids, ``(w,)`` how many ids of each column were not in the given one.
        rows: how many samples were made.
        left_out: how many rows were not kept.
        mark: the start of the block that came last.
        reached: number of that file, and which share of it has been read.
    """

    mark: Mark
    reached: tuple[int, float]

    def __init__(self, form: Form, vocabulary: Vocabulary | None = None) -> None:
        self._form, self._grows = form, vocabulary is None
        self.vocabulary = vocabulary or Vocabulary()
        self.rows = self.left_out = 0
        self.unknown = {
            each.name: np.zeros(len(each.columns), np.int64)
            for each in form.fields
            if each.kind == "ids"
        }
        dense = [each.name for each in form.fields if each.dense]
        if dense and vocabulary is None:
            raise ValueError(f"ids of {dense[0]} are numbered by a vocabulary: give one")
        self._ranks = {name: self.vocabulary.ranks(name) for name in dense}

    def read(self, sources: Sequence[Path], start: Mark | None = None) -> Iterator[Arrays]:
        """Read files one after the other, some rows at a time.

        Args:
            sources: the files.
            start: where to go on; None = at the first row. The vocabulary must be that of the rows
                before, if it grows.

        Yields:
            Fields, each ``(n, w)``, or ``(n,)`` if flat; ids are int64, shifted, or 0 where the
            given vocabulary lacks them.

        Raises:
            UserError: as `csv_blocks` and `Form.values`.
        """
        first = 0
        if start is not None:
            first, self.rows, self.left_out = start.source, start.rows, start.left_out
            self.unknown = {name: np.array(counts) for name, counts in start.unknown.items()}
        for number, source in enumerate(sources[first:], first):
            place = start.place if start is not None and number == first else None
            for block in csv_blocks(source, self._form.layout, place):
                self.mark = self._mark(number, block)
                self.reached = (number, block.read)
                yield self._arrays(block)

    def _mark(self, source: int, block: Block) -> Mark:
        unknown = {name: counts.tolist() for name, counts in self.unknown.items()}
        return Mark(source, block.place, self.rows, self.left_out, unknown)

    def _arrays(self, block: Block) -> Arrays:
        found = self._form.values(block)
        for each in self._form.fields:
            values = found[each.name]
            if each.kind == "ids":
                values = self._coded(each, values)
            else:
                values = values.astype(each.dtype, copy=False)
            found[each.name] = values[:, 0] if each.flat else values
        count = len(found[self._form.fields[0].name])
        self.rows, self.left_out = self.rows + count, self.left_out + len(block) - count
        return found

    def _coded(self, each: Field, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if self._grows:
            self.vocabulary.add(each.name, ids)
            return ids + each.shift
        known = self.vocabulary.known(each.name, ids)
        self.unknown[each.name] += (~known).sum(axis=0)
        if not each.dense:
            return np.where(known, ids + each.shift, 0)
        codes = np.zeros_like(ids)
        for place, ranks in enumerate(self._ranks[each.name]):
            here = known[:, place]
            codes[here, place] = ranks[ids[here, place]]
        return codes


def survey(sources: Sequence[Path], form: Form) -> Vocabulary:
    """Find the vocabulary of files, by which `Field.dense` ids can be numbered.

    Raises:
        UserError: as `Coder.read`.
    """
    fields = tuple(replace(each, dense=False) for each in form.fields)
    coder = Coder(replace(form, fields=fields, csv=form.layout))
    for _ in coder.read(sources):
        pass
    return coder.vocabulary


def _longer(seen: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """The same with at least so many entries."""
    return np.concatenate([seen, np.zeros(max(count - len(seen), 0), bool)])


def _as_they_are(form: Form, block: Block) -> Arrays:
    return {each.name: block.matrix(each.columns) for each in form.fields}


def _whole(each: Field) -> bool:
    return np.issubdtype(np.dtype(each.dtype), np.integer)


def _check(block: Block, each: Field, values: npt.NDArray[Any]) -> None:
    if each.kind == "ids":
        bad, what = (values < 0) | (values >= _MOST_IDS), f"not an id from 0 to {_MOST_IDS - 1}"
    elif each.kind == "labels":
        bad, what = (values != 0) & (values != 1), "neither 0 nor 1"
    else:
        bad, what = ~np.isfinite(values), "not a finite number"
    if bad.any():
        row, place = (int(at) for at in np.argwhere(bad)[0])
        value = values[row, place].item()
        raise block.fault(row, f"column '{each.columns[place]}' is {value}, {what}")


def _packed(seen: npt.NDArray[np.bool_]) -> str:
    return base64.b64encode(zlib.compress(np.packbits(seen).tobytes())).decode()


def _unpacked(packed: str, count: int) -> npt.NDArray[np.bool_]:
    bits = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8)
    return np.unpackbits(bits, count=count).astype(bool)
