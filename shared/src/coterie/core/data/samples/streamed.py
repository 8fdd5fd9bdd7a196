"""Samples that stay in Arrow files: batches are gathered from the files when they are needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.data.samples.arrow_rows import ArrowRows, Views
from coterie.core.data.samples.samples import SampleData, batch_counts
from coterie.core.errors import Unstackable, UserError
from coterie.core.tensors.keys import Key

_MOST_CLIENTS = 8  # whose record batches stay mapped
_MOST_BATCHES = 2  # of a client; a mini-batch may reach from one into the next
_ALL_AT_ONCE = 1 << 16  # rows that are copied at a time where a client is read as a whole
_WIDER: dict[Any, Any] = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


@dataclass(frozen=True)
class RowRange:
    """Some rows of a file: those from ``start`` on, before ``stop``."""

    rows: ArrowRows
    start: int
    stop: int

    def __len__(self) -> int:
        return max(self.stop - self.start, 0)


@dataclass(frozen=True)
class StreamedSamples:
    """Samples of C clients in Arrow files; stands where `SampleData` stands.

    Only paths and numbers are held: it is copied and pickled for next to nothing.

    Attributes:
        ids: ``(C,)`` int64, ascending client ids.
        ranges: where each client's samples are, one after the other.
        constants: fields that are equal for all samples of a client, each ``(C, ...)``.
        fields: columns of the files to read; None = all.
        kinds: numpy types that batches are to have in place of those in the files, by field;
            uint16 and uint32, with which torch hardly computes, become int32 and int64 anyway.

    Raises:
        ValueError: the lengths do not fit together.
    """

    ids: Tensor
    ranges: tuple[tuple[RowRange, ...], ...]
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    fields: tuple[str, ...] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.ranges) != self.ids.numel():
            raise ValueError(f"{self.ids.numel()} clients need as many lists of ranges")
        for name, values in self.constants.items():
            if values.shape[:1] != (len(self.ranges),):
                raise ValueError(f"constant '{name}' must hold one value a client")

    def __len__(self) -> int:
        return self.ids.numel()

    @cached_property
    def lengths(self) -> Tensor:
        """Number of samples of each client, ``(C,)`` int64."""
        counts = [sum(len(part) for part in parts) for parts in self.ranges]
        return torch.tensor(counts, dtype=torch.int64, device=self.ids.device)

    def take(self, index: Tensor) -> StreamedSamples:
        """Samples of the clients at the positions ``index``, ``(K,)`` int64."""
        return StreamedSamples(
            self.ids[index],
            tuple(self.ranges[place] for place in index.tolist()),
            {name: values[index] for name, values in self.constants.items()},
            self.fields,
            self.kinds,
        )

    def batches(
        self,
        epochs: int | Tensor,
        batch_size: int | None,
        key: Key | None,
        *,
        by_place: bool = False,
        at_least: int = 1,
    ) -> StreamedBatches:
        """Cut into mini-batches, see `StreamedBatches`.

        ``by_place`` changes nothing: with a key, rows of files are shuffled whatever it says.
        """
        return StreamedBatches(self, epochs, batch_size, key, at_least=at_least)

    def sample_bytes(self) -> int:
        """Bytes of one sample in a batch; 0 where no client has a file."""
        if not any(self.ranges):
            return 0
        sample = _nothing(self, 0)
        return sum(v.element_size() * v.shape[2:].numel() for v in sample.values())

    def resident(self) -> SampleData:
        """Read all samples into memory.

        Raises:
            UserError: as `StreamedBatches`.
        """
        cut = self.batches(1, _ALL_AT_ONCE, None)
        clients = []
        for place, count in enumerate(cut.per_epoch.tolist()):
            parts = [cut(number, torch.tensor([place])) for number in range(count)]
            parts = parts or [_nothing(self, place)]
            clients.append({name: torch.cat([p[name][0] for p in parts]) for name in parts[0]})
        return SampleData.from_clients(clients, self.ids.tolist())


class StreamedBatches:
    """Mini-batches of samples in files, as `coterie.core.local_training.fit.fit` takes them.

    In every epoch a client's record batches come in another order, and the rows of each in another
    order within it; a batch may reach from one record batch into the next. Order and batch are
    functions of key, epoch and number alone, so a run that is taken up again makes the same ones.

    Args:
        data: of C clients.
        epochs: local epochs E, one for all or ``(C,)`` int64.
        batch_size: B; None = all samples of a client in one batch.
        key: the clients' keys, ``state`` of shape ``(C,)``; None = in the order of the files.
        at_least: a last batch of fewer samples is joined to the one before.

    Attributes:
        per_epoch: ``(C,)`` int64, number of batches of each client in an epoch.
        steps: ``(C,)`` int64, number of batches of each client.
    """

    def __init__(
        self,
        data: StreamedSamples,
        epochs: int | Tensor,
        batch_size: int | None,
        key: Key | None,
        *,
        at_least: int = 1,
    ) -> None:
        self._data, self._size = data, batch_size
        self._key = None if key is None else Key(key.state.cpu())  # files are read on the host
        self.per_epoch = batch_counts(data.lengths, batch_size, at_least)
        self.steps = epochs * self.per_epoch
        self._clients: OrderedDict[int, _Client] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_clients": OrderedDict()}  # what is open stays here

    def __call__(self, number: int, rows: Tensor) -> dict[str, Tensor]:
        """Batch ``number`` of the one client at ``rows``, ``(1,)`` int64, as ``(1, B, ...)``.

        Integer ``number`` is epoch times batches an epoch plus the batch's place in the epoch.
        Asking in order is cheap; any other order gives the same batches.

        Raises:
            Unstackable: there are several clients.
            UserError: a file is missing, damaged, or shorter than it was.
        """
        if rows.numel() != 1:
            raise Unstackable("samples are streamed from files, one client at a time")
        place = int(rows)
        epoch, part = divmod(number, int(self.per_epoch[place]))
        count = int(self._data.lengths[place])
        size = count if self._size is None else self._size
        stop = count if part == int(self.per_epoch[place]) - 1 else (part + 1) * size
        batch = self._client(place).gather(epoch, part * size, stop)
        return {name: torch.as_tensor(values)[None] for name, values in batch.items()} | {
            name: values[place].expand(1, stop - part * size, *values.shape[1:])
            for name, values in self._data.constants.items()
        }

    def _client(self, place: int) -> _Client:
        if place not in self._clients:
            while len(self._clients) >= _MOST_CLIENTS:
                self._clients.popitem(last=False)[1].close()
            key = None if self._key is None else Key(self._key.state[place])
            self._clients[place] = _Client(self._data, place, key)
        self._clients.move_to_end(place)
        return self._clients[place]


@dataclass(frozen=True)
class _Block:
    """Rows of a client that lie in one record batch, from ``start`` on, before ``stop``."""

    rows: ArrowRows
    batch: int
    start: int
    stop: int


class _Client:
    """One client's rows in the order of an epoch."""

    def __init__(self, data: StreamedSamples, place: int, key: Key | None) -> None:
        self._data, self._key = data, key
        self._blocks = [block for part in data.ranges[place] for block in _blocks(part)]
        self._sizes = np.array([block.stop - block.start for block in self._blocks])
        self._open: OrderedDict[tuple[int, int], _Open] = OrderedDict()
        self._visit = lru_cache(2)(self._visited)

    def gather(self, epoch: int, start: int, stop: int) -> Views:
        """Copy the rows from place ``start`` of an epoch's order on, before ``stop``."""
        order, starts = self._visit(epoch)
        found: Views = {}
        turn = int(np.searchsorted(starts, start, side="right")) - 1
        at = start
        while at < stop:
            until = min(stop, int(starts[turn + 1]))
            opened = self._opened(epoch, order, turn)
            here = slice(at - int(starts[turn]), until - int(starts[turn]))
            for name, view in opened.views.items():
                if name not in found:
                    kind = _kind(self._data, name, view)
                    found[name] = np.empty((stop - start, *view.shape[1:]), kind)
                _copy(view, opened.order, here, found[name][at - start : until - start])
            at, turn = until, turn + 1
        return found

    def _visited(self, epoch: int) -> tuple[list[int], npt.NDArray[np.int64]]:
        """Give the blocks in the order of an epoch, and the place in it at which each starts."""
        order = np.arange(len(self._blocks))
        if self._key is not None:
            order = _shuffled(self._key.fold("epoch", epoch), len(order))
        starts = np.concatenate([[0], np.cumsum(self._sizes[order])]).astype(np.int64)
        return order.tolist(), starts

    def close(self, keep: int = 0) -> None:
        """Let go of all record batches but those of which rows were gathered last."""
        while len(self._open) > keep:
            rows, views, _ = self._open.popitem(last=False)[1]
            rows.forget(views)

    def _opened(self, epoch: int, order: list[int], turn: int) -> _Open:
        number = order[turn]
        if (epoch, number) not in self._open:
            self.close(_MOST_BATCHES - 1)
            block = self._blocks[number]
            for later in order[turn + 1 : turn + 2]:
                self._blocks[later].rows.expect(self._views(self._blocks[later]))
            shuffled = None
            if self._key is not None:
                key = self._key.fold("epoch", epoch).fold("block", number)
                shuffled = _shuffled(key, block.stop - block.start)
            self._open[epoch, number] = _Open(block.rows, self._views(block), shuffled)
        self._open.move_to_end((epoch, number))
        return self._open[epoch, number]

    def _views(self, block: _Block) -> Views:
        views = block.rows.views(block.batch, self._data.fields)
        return {name: view[block.start : block.stop] for name, view in views.items()}


class _Open(NamedTuple):
    """A record batch in use: its columns, and the order in which its rows are visited."""

    rows: ArrowRows
    views: Views
    order: npt.NDArray[np.int64] | None


def _blocks(part: RowRange) -> Iterator[_Block]:
    starts = part.rows.starts
    if not 0 <= part.start <= part.stop <= int(starts[-1]):
        raise UserError(
            f"{part.rows.path} has {int(starts[-1])} rows, not the rows {part.start} to "
            f"{part.stop} that were to be read: convert the data again"
        )
    batch = int(np.searchsorted(starts, part.start, side="right")) - 1
    while batch + 1 < len(starts) and int(starts[batch]) < part.stop:
        first, end = int(starts[batch]), int(starts[batch + 1])
        start, stop = max(part.start, first), min(part.stop, end)
        if start < stop:
            yield _Block(part.rows, batch, start - first, stop - first)
        batch += 1


def _kind(data: StreamedSamples, name: str, view: npt.NDArray[Any]) -> Any:
    """Type of a field in batches."""
    return data.kinds.get(name, _WIDER.get(view.dtype, view.dtype))


def _shuffled(key: Key, count: int) -> npt.NDArray[np.int64]:
    """Order of ``count`` things; the hashes of different counters differ, so there are no ties."""
    order: npt.NDArray[np.int64] = np.argsort(key.bits(torch.arange(count, device="cpu")).numpy())
    return order


def _copy(
    view: npt.NDArray[Any],
    order: npt.NDArray[np.int64] | None,
    here: slice,
    out: npt.NDArray[Any],
) -> None:
    if order is None:
        out[...] = view[here]
    elif out.dtype == view.dtype:
        # All places are in the view; with mode "raise" numpy would fill a buffer first.
        np.take(view, order[here], axis=0, out=out, mode="clip")
    else:
        out[...] = np.take(view, order[here], axis=0, mode="clip")


def _nothing(data: StreamedSamples, place: int) -> dict[str, Tensor]:
    """Fields without a row, of the form that other clients' samples have."""
    ranges = [part for parts in data.ranges for part in parts]
    if not ranges:
        raise UserError("no client has a file of samples: there is nothing to read")
    found = {
        name: torch.as_tensor(view.astype(_kind(data, name, view)))[None]
        for name, view in ranges[0].rows.nothing(data.fields).items()
    }
    return found | {
        name: values[place].expand(1, 0, *values.shape[1:])
        for name, values in data.constants.items()
    }
