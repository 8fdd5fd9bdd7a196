"""Local data of clients as samples: features, labels, whatever a loss takes, end to end."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.ordering import adjacent
from coterie.core.tensors.stacked import Ragged

S = TypeVar("S", bound="Samples")

MASK = "batch.mask"
"""Field of a batch of unequal clients: which samples count; no name that a user's field has."""


class CountedBatches(Protocol):
    """Batches that know how many there are of each client.

    Attributes:
        per_epoch: ``(C,)`` int64, in an epoch.
        steps: ``(C,)`` int64, in all epochs.
    """

    per_epoch: Tensor
    steps: Tensor

    def __call__(self, number: int, rows: Tensor) -> dict[str, Tensor]:
        """Batch ``number`` of the clients ``rows``, each field ``(K, B, ...)``."""
        ...


class Samples(Protocol):
    """Samples of C clients, wherever they lie: `SampleData` in memory, others on disk."""

    @property
    def ids(self) -> Tensor:
        """``(C,)`` int64, ascending client ids."""
        ...

    @property
    def lengths(self) -> Tensor:
        """Number of samples of each client, ``(C,)`` int64."""
        ...

    def __len__(self) -> int: ...

    def take(self: S, index: Tensor) -> S:
        """Samples of the clients at the positions ``index``, ``(K,)`` int64."""
        ...

    def batches(
        self,
        epochs: int | Tensor,
        batch_size: int | None,
        key: Key | None,
        *,
        by_place: bool = False,
        at_least: int = 1,
    ) -> CountedBatches:
        """Shuffled mini-batches; arguments as of `MiniBatches`."""
        ...

    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        ...


@dataclass(frozen=True)
class SampleData:
    """Samples of C clients, without padding.

    Client c owns the samples ``offsets[c]`` to ``offsets[c + 1]``.

    Attributes:
        ids: ``(C,)`` int64, ascending client ids.
        samples: fields by name, each ``(n, ...)``.
        offsets: ``(C + 1,)`` int64, ascending, from 0 to n.

    Raises:
        ValueError: the lengths do not fit together.

    Example:
        >>> data = SampleData.from_clients([{"x": torch.ones(2)}, {"x": torch.zeros(3)}])
        >>> data.lengths.tolist(), data.take(torch.tensor([1])).samples["x"].tolist()
        ([2, 3], [0.0, 0.0, 0.0])
    """

    ids: Tensor
    samples: dict[str, Tensor]
    offsets: Tensor

    def __post_init__(self) -> None:
        if self.offsets.shape != (self.ids.numel() + 1,):
            raise ValueError(f"{self.ids.numel()} clients need one offset more than clients")
        if int(self.offsets[0]) != 0 or bool((self.lengths < 0).any()):
            raise ValueError("offsets of samples must start at 0 and ascend")
        for name, values in self.samples.items():
            if values.shape[:1] != (int(self.offsets[-1]),):
                raise ValueError(f"samples '{name}' must hold {int(self.offsets[-1])} rows")

    @staticmethod
    def from_clients(
        clients: Sequence[dict[str, Tensor]], ids: Sequence[int] | None = None
    ) -> SampleData:
        """Stack the samples of clients, each a dict of ``(n_c, ...)``.

        Args:
            clients: at least one.
            ids: ascending; 0, 1, … by default.

        Raises:
            UserError: a client has other fields than the first one, or fields of unequal lengths;
                or ids do not ascend.
        """
        numbers = range(len(clients)) if ids is None else ids
        _check_clients(clients, numbers)
        samples = {name: torch.cat([client[name] for client in clients]) for name in clients[0]}
        lengths = [len(next(iter(client.values()))) for client in clients]
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        return SampleData(torch.tensor(list(numbers), dtype=torch.int64), samples, offsets)

    def __len__(self) -> int:
        return self.ids.numel()

    @property
    def lengths(self) -> Tensor:
        """Number of samples of each client, ``(C,)`` int64."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def alike(self) -> bool:
        """Whether all clients have the same number of samples, at least one."""
        counts = self.lengths.unique().tolist()
        return len(counts) == 1 and counts[0] > 0

    @property
    def whole(self) -> SampleData:
        """What these samples were taken from, by `take`; itself where that is gone, or nothing."""
        origin: weakref.ref[SampleData] | None = self.__dict__.get("_origin")
        found = None if origin is None else origin()
        return self if found is None else found

    def part_of(self, other: SampleData) -> SampleData:
        """Note that these samples are some of ``other``'s whole; they are given back."""
        if self is not other.whole:  # no field: a message or a file knows nothing of it
            object.__setattr__(self, "_origin", weakref.ref(other.whole))
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_origin"}

    def take(self, index: Tensor) -> SampleData:
        """Data of the clients at the positions ``index``, ``(K,)`` int64."""
        return self._taken(index).part_of(self)

    def _taken(self, index: Tensor) -> SampleData:
        if adjacent(index):  # as most chunks are: views of theirs
            part = slice(int(index[0]), int(index[-1]) + 1)
            offsets = self.offsets[part.start : part.stop + 1]
            first, last = int(offsets[0]), int(offsets[-1])
            samples = {name: values[first:last] for name, values in self.samples.items()}
            return SampleData(self.ids[part], samples, offsets - first)
        places = Ragged(torch.arange(int(self.offsets[-1])), self.offsets).take(index)
        samples = {n: v.index_select(0, places.values) for n, v in self.samples.items()}
        return SampleData(self.ids[index], samples, places.offsets)

    def batches(
        self,
        epochs: int | Tensor,
        batch_size: int | None,
        key: Key | None,
        *,
        by_place: bool = False,
        at_least: int = 1,
    ) -> MiniBatches:
        """Shuffle and cut the samples; arguments as of `MiniBatches`."""
        return MiniBatches(self, epochs, batch_size, key, by_place=by_place, at_least=at_least)

    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return sum(v[:1].numel() * v.element_size() for v in self.samples.values())


def _check_clients(clients: Sequence[dict[str, Tensor]], ids: Sequence[int]) -> None:
    """Check what `SampleData.from_clients` is given: to stack would hide most mistakes."""
    if not clients or not clients[0]:
        raise UserError("there are no samples: give one client with one field at least")
    if len(ids) != len(clients) or any(a >= b for a, b in pairwise(ids)):
        raise UserError(f"ids must ascend, one for each of {len(clients)} clients")
    for number, client in zip(ids, clients, strict=True):
        if client.keys() != clients[0].keys():
            raise UserError(
                f"client {number} has the fields {', '.join(client)}, the first one has "
                f"{', '.join(clients[0])}: give all of them the same"
            )
        for name, values in client.items():
            if not isinstance(values, Tensor) or not values.dim():
                raise UserError(
                    f"'{name}' of client {number} must be a tensor with one row a sample, as "
                    "torch.as_tensor gives one"
                )
        lengths = {name: len(values) for name, values in client.items()}
        if len(set(lengths.values())) > 1:
            what = ", ".join(f"{length} of '{name}'" for name, length in lengths.items())
            raise UserError(f"client {number} has rows of unequal numbers: {what}")


def in_memory(samples: Samples) -> SampleData:
    """Give samples as tensors, for what must look into them.

    Raises:
        UserError: they lie on disk.
    """
    if not isinstance(samples, SampleData):
        raise UserError(
            "this needs all samples in memory, and they are read from files batch by batch: choose "
            "another method, or fewer samples"
        )
    return samples


class MiniBatches:
    """Shuffled mini-batches of a chunk of clients, as `coterie.core.local_training.fit.fit` takes.

    Every epoch shuffles a client's samples anew and cuts them into ⌈n_c / B⌉ batches; the last one
    may be smaller.

    Args:
        data: of C clients.
        epochs: local epochs E, one for all or ``(C,)`` int64.
        batch_size: B; None = all samples of a client in one batch (B = ∞), unshuffled.
        key: the clients' keys, ``state`` of shape ``(C,)``; None = nothing is shuffled.
        by_place: whether a sample's place in its batch matters, as for a mask of dropout. Then all
            are shuffled if B is a number; else a client with one batch only where another has more.
        at_least: fewer samples than these are no last batch of their own, but join the one before;
            2 for batch normalisation, which can do nothing with one.

    Attributes:
        per_epoch: ``(C,)`` int64, number of batches of each client in an epoch: ⌈n_c / B⌉, or one
            less where the last two are joined.
        steps: ``(C,)`` int64, number of batches of each client: E times as many.

    Example:
        >>> data = SampleData.from_clients([{"x": torch.ones(2)}, {"x": torch.zeros(1)}])
        >>> batches = MiniBatches(data, 1, None, Key.from_seed(0).fold(data.ids))
        >>> batches.steps.tolist(), batches(0, torch.tensor([0, 1]))[MASK].tolist()
        ([1, 1], [[True, True], [True, False]])
    """

    def __init__(
        self,
        data: SampleData,
        epochs: int | Tensor,
        batch_size: int | None,
        key: Key | None,
        *,
        by_place: bool = False,
        at_least: int = 1,
    ) -> None:
        longest = int(data.lengths.max()) if len(data) else 0
        self._size = max(longest if batch_size is None else batch_size, 1)
        self._data = data
        self.per_epoch = batch_counts(data.lengths, batch_size, at_least)
        most = int(torch.as_tensor(epochs).max()) if len(data) else 0
        matters = bool((self.per_epoch > 1).any()) or (by_place and batch_size is not None)
        if key is None or not matters:
            self._order = torch.arange(int(data.offsets[-1])).expand(most, -1)
        else:
            self._order = _shuffles(data, most, key)
        self._alike = int(self.per_epoch[0]) if data.alike else None
        self.steps = epochs * self.per_epoch

    def __call__(self, number: int, rows: Tensor) -> dict[str, Tensor]:
        """Batch ``number`` of the clients ``rows``, which all must have that many; see `fit`."""
        if self._alike is not None:
            epoch, part = divmod(number, self._alike)
            order = self._order[epoch].view(len(self._data), -1)
            end = None if part == self._alike - 1 else (part + 1) * self._size
            return self._samples(order[:, part * self._size : end].index_select(0, rows))
        in_epoch = number % self.per_epoch[rows]
        done = in_epoch * self._size
        is_last = in_epoch == self.per_epoch[rows] - 1
        sizes = (self._data.lengths[rows] - done).where(is_last, self._size)
        column = torch.arange(int(sizes.max()))
        # Padding repeats a sample of the client, so that no loss meets a value it cannot take.
        place = column.minimum(sizes[:, None] - 1) + (self._data.offsets[rows] + done)[:, None]
        epochs = number // self.per_epoch[rows]
        batch = self._samples(self._order[epochs[:, None], place])
        if bool((sizes < column.numel()).any()):
            batch[MASK] = column < sizes[:, None]
        return batch

    def _samples(self, place: Tensor) -> dict[str, Tensor]:
        flat = place.flatten()  # index_select copies whole samples, indexing number by number
        samples = self._data.samples.items()
        return {
            name: v.index_select(0, flat).view(*place.shape, *v.shape[1:]) for name, v in samples
        }


def batch_counts(lengths: Tensor, batch_size: int | None, at_least: int = 1) -> Tensor:
    """Batches in one epoch of each client, ``(C,)`` int64.

    Args:
        lengths: ``(C,)`` numbers of samples.
        batch_size: None = one batch.
        at_least: a last batch of fewer joins the one before.

    Example:
        >>> batch_counts(torch.tensor([0, 1, 8, 9]), 4, at_least=2).tolist()
        [0, 1, 2, 2]
    """
    if batch_size is None:
        return (lengths > 0).long()
    counts = (lengths + batch_size - 1) // batch_size
    joined = (lengths > batch_size) & (lengths - (counts - 1) * batch_size < at_least)
    return counts - joined.long()


def _shuffles(data: SampleData, epochs: int, key: Key) -> Tensor:
    """Where each place of each epoch's order finds its sample, ``(E, n)``."""
    owners = Ragged(torch.empty(int(data.offsets[-1])), data.offsets)
    row, position = owners.rows, owners.positions
    keys = [key.fold("epoch", epoch).take(row) for epoch in range(epochs)]
    return torch.stack([shuffle_rows(each, row, position) for each in keys])


# Batches of clients that stand in a stack more than once.


class RepeatedBatches:
    """Batches of clients that come more than once, as to be trained with several rates at once.

    Args:
        batches: of N clients.
        who: ``(K,)`` int64, which of them each row is.
        epochs: ``(K,)`` int64 passes of each row.

    Attributes:
        per_epoch: ``(K,)`` int64.
        steps: ``(K,)`` int64.
    """

    def __init__(self, batches: CountedBatches, who: Tensor, epochs: Tensor) -> None:
        self._batches, self._who = batches, who
        self.per_epoch = batches.per_epoch[who]
        self.steps = epochs * self.per_epoch

    def __call__(self, number: int, rows: Tensor) -> dict[str, Tensor]:
        """Batch ``number`` of the rows, each field ``(K, B, ...)``."""
        return self._batches(number, self._who[rows])
