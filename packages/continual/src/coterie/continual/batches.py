"""Local batches of a chunk of users as tables of counts.

With a score that is linear in the item, a batch enters the gradient only through how often each
item stands in it and how often as a positive. So a batch is two rows of counts, and all batches
of a chunk are two ``(K, n_items)`` tables built by one scatter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.negatives import sample_negatives
from coterie.core.ragged import Ragged
from coterie.core.seeding import Key, shuffle_rows


@dataclass(frozen=True)
class Batches:
    """All local batches of C users; term k is batch ``number[k]`` of user ``owner[k]``.

    Terms are ordered by batch number, then by number of batches of their user (descending), so the
    users that still have a batch b are a prefix of ``order`` and their terms are one slice.

    Attributes:
        order: ``(C,)`` int64, users by number of batches, descending.
        owner: ``(K,)`` int64, user of each term.
        starts: first term of each batch number, and K at the end.
        size: ``(K,)`` samples of the batch.
        drawn: ``(K, n_items)`` how often an item is in the batch.
        positive: ``(K, n_items)`` how often as a positive.
    """

    order: Tensor
    owner: Tensor
    starts: list[int]
    size: Tensor
    drawn: Tensor
    positive: Tensor

    def __len__(self) -> int:
        return len(self.starts) - 1

    def terms(self, number: int) -> slice:
        """Terms of one batch number."""
        return slice(self.starts[number], self.starts[number + 1])


def draw_batches(
    key: Key,
    train: Ragged,
    n_items: int,
    *,
    negatives: int,
    batch_size: int,
    epochs: int,
    dtype: torch.dtype,
) -> Batches:
    """Draw negatives, shuffle and cut into batches, for C users at once.

    Args:
        key: the users' keys, ``state`` of shape ``(C,)``.
        train: positives of each user.
        n_items: items known so far; negatives are drawn from all of them but the user's positives.
        negatives: for each positive.
        batch_size: samples in a batch; the last one of an epoch may be smaller.
        epochs: passes E; negatives and order are drawn afresh for each.
        dtype: of the tables.
    """
    known = train.mask(n_items)
    has_free = known.sum(1) < n_items  # a user who has consumed every item has no negatives
    n_samples = train.lengths * (1 + negatives * has_free)
    per_epoch = (n_samples + batch_size - 1) // batch_size  # batches of each user
    order = torch.argsort(per_epoch, descending=True, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    # Users with more than b batches: the length of the prefix that is active in batch b.
    most = int(per_epoch.max()) if len(train) else 0
    active = [int((per_epoch > b).sum()) for b in range(most)] * epochs
    starts = torch.tensor([0, *active]).cumsum(0)
    users = [order[:count] for count in active]
    owner = torch.cat(users) if users else order[:0]
    table = torch.zeros(2, int(starts[-1]), n_items, dtype=dtype)
    for epoch in range(epochs):
        item, number, user, n_positive = _draw_epoch(
            key.fold("epoch", epoch), train, known, n_samples, negatives, batch_size
        )
        row = starts[number + epoch * most] + place[user]
        cell = row * n_items + item
        one = torch.ones((), dtype=dtype)
        table[0].view(-1).index_put_((cell,), one, accumulate=True)
        table[1].view(-1).index_put_((cell[:n_positive],), one, accumulate=True)
    return Batches(order, owner, starts.tolist(), table[0].sum(1), table[0], table[1])


def _draw_epoch(
    key: Key, train: Ragged, known: Tensor, n_samples: Tensor, negatives: int, batch_size: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Samples of one pass: item, batch number and user of each, positives first."""
    negative = sample_negatives(key.fold("negatives"), train, known.shape[1], negatives, known)
    row, position = train.rows, train.positions
    user = torch.cat([row, row.repeat_interleave(negatives)])
    item = torch.cat([train.values, negative])
    repetition = torch.arange(1, negatives + 1)
    identity = torch.cat([position, (position[:, None] + (repetition << 32)).reshape(-1)])
    drawn = item >= 0
    if not bool(drawn.all()):  # before batches are cut, so that none is empty
        item, user, identity = item[drawn], user[drawn], identity[drawn]
    number = _batch_numbers(key.fold("shuffle"), n_samples, user, identity, batch_size)
    return item, number, user, train.values.numel()


def _batch_numbers(
    key: Key, n_samples: Tensor, user: Tensor, identity: Tensor, batch_size: int
) -> Tensor:
    """Batch of each sample after a shuffle within its user; users with one batch need none.

    ``identity`` numbers the samples of a user, so that the shuffle does not depend on the chunk.
    """
    number = torch.zeros_like(user)
    many = (n_samples > batch_size)[user].nonzero().flatten()
    if not many.numel():
        return number
    row, place = user[many], identity[many]
    shuffled = many[shuffle_rows(key.take(row), row, place)]
    sizes = torch.bincount(row, minlength=n_samples.numel())
    start = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    number[shuffled] = (torch.arange(row.numel()) - start) // batch_size
    return number
