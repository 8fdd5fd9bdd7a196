"""Samples of clients in three parts: to train on, to choose by, to report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData, Samples
from coterie.core.errors import UserError

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
