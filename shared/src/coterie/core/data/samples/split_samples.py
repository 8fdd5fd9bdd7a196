"""Samples of clients in parts: to train on, to choose by, to report; a random share; all in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData, Samples
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.stacked import Ragged

if TYPE_CHECKING:  # before Python 3.13 a type variable has no default at run time
    from typing_extensions import TypeVar

    S = TypeVar("S", bound=Samples, default=SampleData)
else:
    from typing import TypeVar

    S = TypeVar("S", bound=Samples)


@dataclass(frozen=True)
class SplitSamples(Generic[S]):
    """Samples of C clients, in memory unless said otherwise; any part of any client may be empty.

    Attributes:
        train: what local training sees.
        valid: what choices are made by.
        test: what is reported, and seen by nothing else.

    Raises:
        ValueError: the parts are of different clients.

    Example:
        >>> data = SplitSamples.of(SampleData.from_clients([{"x": torch.ones(2)}]))
        >>> data.lengths.tolist(), data.test.lengths.tolist()
        ([2], [0])
    """

    train: S
    valid: S
    test: S

    def __post_init__(self) -> None:
        for part in (self.valid, self.test):
            if not torch.equal(part.ids, self.train.ids):
                raise ValueError("the parts must hold the same clients in the same order")

    @staticmethod
    def of(
        train: SampleData, valid: SampleData | None = None, test: SampleData | None = None
    ) -> SplitSamples:
        """Put parts together; those that are not given are empty.

        Raises:
            UserError: a part has other fields.
        """
        for part in filter(None, (valid, test)):
            if part.samples.keys() != train.samples.keys():
                raise UserError(
                    f"samples to train on have the fields {', '.join(train.samples)}, others "
                    f"{', '.join(part.samples)}: give all of them the same"
                )
        return SplitSamples(train, valid or _none(train), test or _none(train))

    def __len__(self) -> int:
        return len(self.train)

    @property
    def ids(self) -> Tensor:
        """``(C,)`` int64, ascending client ids."""
        return self.train.ids

    @property
    def lengths(self) -> Tensor:
        """Number of training samples of each client, ``(C,)`` int64."""
        return self.train.lengths

    def take(self, index: Tensor) -> SplitSamples[S]:
        """Data of the clients at the positions ``index``, ``(K,)`` int64."""
        return SplitSamples(self.train.take(index), self.valid.take(index), self.test.take(index))


def _none(like: SampleData) -> SampleData:
    samples = {name: values[:0] for name, values in like.samples.items()}
    return SampleData(like.ids, samples, torch.zeros_like(like.offsets))


# Parts of the samples of clients: a random share of each client's, or all in one place.


def divide(data: SampleData, counts: Tensor, key: Key) -> tuple[SampleData, SampleData]:
    """Divide each client's samples at random into two parts.

    Args:
        data: of C clients.
        counts: ``(C,)`` int64, numbers of samples of the first parts.
        key: the clients' keys, ``(C,)``.

    Example:
        >>> data = SampleData.from_clients([{"x": torch.arange(5)}, {"x": torch.arange(2)}])
        >>> first, rest = divide(data, torch.tensor([2, 1]), Key.from_seed(0).fold(data.ids))
        >>> first.lengths.tolist(), rest.lengths.tolist()
        ([2, 1], [3, 1])
    """
    owners = Ragged(torch.empty(int(data.offsets[-1])), data.offsets)
    row, position = owners.rows, owners.positions
    order = shuffle_rows(key.take(row), row, position)
    is_first = position < counts[row]
    return (
        _part(data, order[is_first], counts),
        _part(data, order[~is_first], data.lengths - counts),
    )


def share_counts(lengths: Tensor, share: float) -> Tensor:
    """Numbers of samples in a share, ``(C,)`` int64: rounded, at least 1 where there are any."""
    counts = (share * lengths.double()).round().long()
    return counts.clamp(min=1).minimum(lengths)


def pooled(data: SampleData) -> SampleData:
    """Put the samples of all clients together, as those of one client with the id 0."""
    everything = torch.tensor([0, int(data.offsets[-1])])
    return SampleData(torch.zeros(1, dtype=torch.int64), data.samples, everything)


def _part(data: SampleData, index: Tensor, lengths: Tensor) -> SampleData:
    samples = {name: values[index] for name, values in data.samples.items()}
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return SampleData(data.ids, samples, offsets)
