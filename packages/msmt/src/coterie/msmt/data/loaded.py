"""Samples of big files: in memory where they are small, else converted once and streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.data.samples.arrow_rows import ArrowRows
from coterie.core.data.samples.samples import SampleData, Samples
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.data.samples.streamed import RowRange, StreamedSamples
from coterie.core.data.sources.arrow_samples import convert, gather
from coterie.core.data.sources.sample_forms import Arrays, Form, Vocabulary
from coterie.core.errors import UserError

BIG = 256 << 20
"""Bytes of text from which on samples are streamed."""

_FIELDS = ("ids", "numbers", "labels")
_PACKED = 5  # bytes of text in a byte of an archive, about


@dataclass(frozen=True)
class Loaded:
    """Samples made of files.

    Attributes:
        content: the fields, or the Arrow file that has them.
        count: number of samples.
        vocabulary: that of the training file.
        unknown: of each column of ids, how many the training file lacks.
        left_out: number of rows that became no samples.
    """

    content: Arrays | ArrowRows
    count: int
    vocabulary: Vocabulary
    unknown: tuple[int, ...]
    left_out: int

    @property
    def fields(self) -> tuple[str, ...]:
        """What a sample has of ids, numbers and labels."""
        content = self.content
        names = content.schema.names if isinstance(content, ArrowRows) else list(content)
        return tuple(name for name in _FIELDS if name in names)

    def pieces(self, field: str) -> Iterator[npt.NDArray[Any]]:
        """Yield a field, some rows at a time."""
        if not isinstance(self.content, ArrowRows):
            yield self.content[field]
            return
        for batch in range(len(self.content.starts) - 1):
            views = self.content.views(batch, (field,))
            yield views[field]
            self.content.forget(views)

    def rows(self, places: npt.NDArray[np.int64], fields: tuple[str, ...]) -> Arrays:
        """Copy some rows, ``(n,)``, of some fields."""
        if isinstance(self.content, ArrowRows):
            return self.content.take(places, fields)
        return {name: self.content[name][places] for name in fields}


Ranges = Sequence[tuple[int, int]]
"""Rows from a first one on, before a last one; several times."""


def load(
    sources: Sequence[Path],
    form: Form,
    target: Path | None,
    *,
    vocabulary: Vocabulary | None = None,
    about: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read files into memory, or convert them.

    Args:
        sources: one after the other.
        form: what is made of the rows; the field ``ids`` has the vocabulary.
        target: the Arrow file; None = into memory.
        vocabulary: that of the training file; None = this is it.
        about: what a conversion depends on beside the files.

    Raises:
        UserError: as `coterie.core.data.sources.arrow_samples.convert`.
    """
    if target is None:
        arrays, coder = gather(sources, form, vocabulary=vocabulary)
        unknown = tuple(coder.unknown["ids"].tolist())
        return Loaded(arrays, coder.rows, coder.vocabulary, unknown, coder.left_out)
    found = convert(sources, target, form, vocabulary=vocabulary, about=about)
    unknown = tuple(found.unknown["ids"])
    return Loaded(found.rows, found.count, found.vocabulary, unknown, found.left_out)


def is_big(sources: Sequence[Path]) -> bool:
    """Whether files hold so much text that their samples are streamed.

    Raises:
        UserError: a file cannot be read.
    """
    try:
        sizes = [
            source.stat().st_size * (_PACKED if source.suffix in (".gz", ".zip") else 1)
            for source in sources
        ]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{error.filename} cannot be read ({reason}): check the path") from None
    return sum(sizes) > BIG


def samples_of(parts: Sequence[tuple[Loaded, Ranges]], dtype: torch.dtype) -> Samples:
    """Put scenarios together, each a client: rows of what was loaded for it.

    Where no numbers were loaded, samples have none, ``(n, 0)``.

    Args:
        parts: of the scenarios, in their order; all in memory, or all converted.
        dtype: of the numbers.
    """
    scenarios = torch.arange(len(parts))
    if all(isinstance(loaded.content, ArrowRows) for loaded, _ in parts):
        return _streamed(parts, scenarios, dtype)
    clients = []
    for number, (loaded, ranges) in enumerate(parts):
        places = np.concatenate([np.arange(0), *(np.arange(*each) for each in ranges)])
        held = {name: torch.as_tensor(v) for name, v in loaded.rows(places, loaded.fields).items()}
        numbers = held.get("numbers", torch.zeros(len(places), 0)).to(dtype)
        fields = {**held, "ids": held["ids"].int(), "numbers": numbers}
        clients.append({**fields, "scenario": torch.full((len(places),), number)})
    return SampleData.from_clients(clients)


def _streamed(
    parts: Sequence[tuple[Loaded, Ranges]], scenarios: Tensor, dtype: torch.dtype
) -> StreamedSamples:
    fields = parts[0][0].fields
    constants = {"scenario": scenarios}
    if "numbers" not in fields:
        constants["numbers"] = torch.zeros(len(parts), 0, dtype=dtype)
    ranges = [
        tuple(RowRange(loaded.content, *each) for each in ranges)
        for loaded, ranges in parts
        if isinstance(loaded.content, ArrowRows)
    ]
    kinds = {"ids": "int32", "numbers": str(dtype).removeprefix("torch.")}
    return StreamedSamples(scenarios, tuple(ranges), constants, fields, kinds)


def parts_of(train: Samples, valid: Samples, test: Samples) -> SplitSamples:
    """Put parts together. Whoever looks into the samples must ask whether they are in memory."""
    return cast(SplitSamples, SplitSamples(train, valid, test))


def unknown_note(where: str, names: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Say which ids the training file lacks; nothing if it has all."""
    found = [f"{name} {count:,}" for name, count in zip(names, counts, strict=True) if count]
    return [f"{where}: ids that training lacks (id 0): {', '.join(found)}"] if found else []


def joint_sizes(loaded: Sequence[Loaded], shift: int) -> tuple[int, ...]:
    """Numbers of ids of each column, so that all scenarios' ids have a place."""
    sizes = [each.vocabulary.sizes("ids", shift) for each in loaded]
    return tuple(max(column) for column in zip(*sizes, strict=True))


# Cut samples of result pages so that no page is on both sides.

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pages:
    """Runs of rows with one search id.

    Attributes:
        ids: ``(r,)`` int64 search id of each run; an id whose rows are apart has several.
        starts: ``(r + 1,)`` int64, first row of each run, and the number of rows.
    """

    ids: Ints
    starts: Ints

    @staticmethod
    def of(pieces: Iterable[Ints]) -> Pages:
        """Find the runs in search ids that come some rows at a time.

        Example:
            >>> Pages.of([np.array([5, 5]), np.array([5, 7])]).starts.tolist()
            [0, 3, 4]
        """
        ids, starts, row = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        last: int | None = None
        for piece in pieces:
            begins = np.ones(len(piece), bool)
            begins[1:] = piece[1:] != piece[:-1]
            if len(piece) and last is not None:
                begins[0] = piece[0] != last
            ids.append(piece[begins].astype(np.int64))
            starts.append(begins.nonzero()[0] + row)
            row += len(piece)
            last = int(piece[-1]) if len(piece) else last
        return Pages(np.concatenate(ids), np.concatenate([*starts, [row]]).astype(np.int64))

    @property
    def apart(self) -> int:
        """How many search ids have rows that are not together."""
        _, runs = np.unique(self.ids, return_counts=True)
        return int((runs > 1).sum())

    def cut(self, share: float) -> tuple[Ranges, Ranges]:
        """Cut off the last search ids, by their first rows.

        Args:
            share: of the search ids, rounded; at least one stays, and one is cut off unless the
                share is 0 or there is only one.

        Returns:
            the rows before, and the rows cut off.

        Example:
            >>> Pages.of([np.array([5, 5, 7, 7, 9])]).cut(0.4)
            ([(0, 4)], [(4, 5)])
        """
        different, first, which = np.unique(self.ids, return_index=True, return_inverse=True)
        off = min(max(round(share * len(different)), 1), len(different) - 1) if share else 0
        rank = np.empty(len(different), np.int64)
        rank[np.argsort(first)] = np.arange(len(different))
        is_off = rank[which] >= len(different) - off
        return self._rows(~is_off), self._rows(is_off)

    def shared(self, other: Pages) -> int:
        """How many search ids both have."""
        return len(np.intersect1d(self.ids, other.ids))

    def _rows(self, taken: npt.NDArray[np.bool_]) -> Ranges:
        """Rows of some runs, neighbours put together."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], taken, [False]]).astype(int)))
        rows = self.starts[edges].tolist()
        return list(zip(rows[::2], rows[1::2], strict=True))
