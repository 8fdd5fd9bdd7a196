"""Recommenders trained by any Trainer: pairs with negatives drawn anew, users to rank items for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor
from torch.optim import Adam, Optimizer

from coterie.core.data.interactions.negatives import EpochBatches
from coterie.core.data.interactions.splits import UserRows
from coterie.core.metrics.ranking_report import Split
from coterie.core.models.recommender import Pairs, Recommender, Triples
from coterie.core.standalone import Standalone
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

_CHUNK = 1024
R = TypeVar("R", bound=Recommender)


class PairwiseSettings(Protocol):
    """What pairwise training needs of settings."""

    @property
    def lr(self) -> float:
        """Learning rate of Adam."""

    @property
    def batch_size(self) -> int:
        """Triples in a batch."""

    @property
    def patience(self) -> int:
        """Epochs without a better validation before it ends."""


@dataclass(frozen=True)
class Wanted:
    """Users to rank all items for.

    Attributes:
        user: ``(C,)`` int64, their numbers in the network.
        data: what they had, and what is to be found.
        split: of validation or test.
    """

    user: Tensor
    data: UserRows
    split: Split


def wanted(user: Tensor, data: UserRows, split: Split) -> list[Wanted]:
    """Ask for the users with something to be found, a thousand at a time.

    Args:
        user: ``(C,)`` int64, numbers in the network.
        data: of these users.
        split: which.
    """
    targets: Ragged = getattr(data, split)
    chunks = (targets.lengths > 0).nonzero().flatten().split(_CHUNK)
    return [Wanted(user[at], data.take(at), split) for at in chunks if at.numel()]


class PairwiseTraining(Standalone[Pairs | Triples, Wanted, Any], Generic[R]):
    """Adam on a recommender's pairwise loss (BPR), one negative a positive; as `fit_pairwise` does.

    A subclass says who is asked, and what is measured.

    Args:
        network: a recommender.
        how: learning rate and size of a batch.
        users: ``(C,)`` int64, the user of every row.
        positives: C rows of items.
        key: of the draws.
    """

    network: R

    def __init__(
        self, network: R, how: PairwiseSettings, users: Tensor, positives: Ragged, key: Key
    ) -> None:
        self.network, self._lr = network, how.lr
        self._pairs = EpochBatches(
            users,
            positives,
            network.n_items,
            key,
            negatives=1,
            batch_size=how.batch_size,
            objective="pairwise",
        )
        self.per_epoch = len(self._pairs)
        self._drawn: tuple[int, Pairs | Triples] | None = None

    def batch(self, number: int) -> Pairs | Triples:
        """Cut a batch from the pairs of its epoch, which are drawn at once."""
        epoch, part = divmod(number, self.per_epoch)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self._pairs.draw(epoch)
        pairs, size = self._drawn[1], self._pairs.batch_size
        return type(pairs)(*(field[part * size : (part + 1) * size] for field in pairs))

    def loss(self, batch: Pairs | Triples) -> Tensor:
        """Mean of -ln sigmoid(s_ui - s_uj), and the network's penalty."""
        return self.network.loss(batch)

    def optimizer(self) -> Optimizer:
        """Adam."""
        return Adam(self.trained(), lr=self._lr)
