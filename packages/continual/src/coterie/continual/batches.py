"""Local batches of a chunk of users, drawn, shuffled and cut for all of them at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.negatives import sample_negatives
from coterie.core.ragged import Ragged
from coterie.core.seeding import Key, shuffle_rows


@dataclass(frozen=True)
class Samples:
    """The samples of one batch number; A users still have such a batch.

    Attributes:
        cell: ``(s,)`` int64 place of each sample in a ``(A, n_items)`` table, end to end.
        label: ``(s,)`` 1 for a positive, 0 for a negative.
        offsets: ``(A + 1,)`` int64 first sample of each user, and s at the end.
        size: ``(A,)`` samples of each user, in the dtype of the labels.
    """

    cell: Tensor
    label: Tensor
    offsets: Tensor
    size: Tensor

    def of(self, table: Tensor) -> Tensor:
        """Entries of an ``(A, n_items)`` table at the samples, ``(s,)``."""
        return table.view(-1).index_select(0, self.cell)


@dataclass(frozen=True)
class Batches:
    """All local batches of C users; term k is one batch of user ``owner[k]``.

    Terms are ordered by batch number, then by number of batches of their user (descending), so the
    users that still have a batch b are a prefix of ``order`` and their terms are one slice. Samples
    are ordered by term.

    Attributes:
        order: ``(C,)`` int64, users by number of batches, descending.
        owner: ``(K,)`` int64, user of each term.
        starts: first term of each batch number, and K at the end.
        offsets: ``(K + 1,)`` int64, first sample of each term, and S at the end.
        item: ``(S,)`` int64 item of each sample.
        label: ``(S,)`` 1 for a positive, 0 for a negative.
        n_items: columns of a score table.
    """

    order: Tensor
    owner: Tensor
    starts: list[int]
    offsets: Tensor
    item: Tensor
    label: Tensor
    n_items: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def terms(self, number: int) -> slice:
        """Terms of one batch number."""
        return slice(self.starts[number], self.starts[number + 1])

    def samples(self, number: int) -> Samples:
        """Samples of one batch number."""
        term = self.terms(number)
        offsets = self.offsets[term.start : term.stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        size = offsets.diff()
        row = torch.arange(size.numel()) * self.n_items
        cell = row.repeat_interleave(size, output_size=last - first)
        cell += self.item[first:last]
        label = self.label[first:last]
        return Samples(cell, label, offsets - first, size.to(label.dtype))


@dataclass(frozen=True)
class _Plan:
    """How the samples of one pass are cut into terms; follows from the number of samples alone.

    Attributes:
        order: ``(C,)`` users by number of batches, descending.
        active: users that have more than b batches, for each b.
        owner: ``(K,)`` user of each term.
        size: ``(K,)`` samples of each term.
        sample: ``(S,)`` where the samples of the terms stand among those of the users.
    """

    order: Tensor
    active: list[int]
    owner: Tensor
    size: Tensor
    sample: Tensor


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
        dtype: of the labels.
    """
    known = train.mask(n_items)
    has_free = train.lengths < n_items
    if not bool(has_free.all()):  # who has consumed every item has no negatives
        has_free = known.sum(1) < n_items
    n_samples = train.lengths * (1 + negatives * has_free)
    plan = _cut(n_samples, batch_size)
    packed = [
        _draw_epoch(
            key.fold("epoch", epoch), train, known, n_samples, negatives, batch_size
        ).values.index_select(0, plan.sample)
        for epoch in range(epochs)
    ]
    samples = torch.cat(packed) if epochs > 1 else packed[0]
    size = plan.size.repeat(epochs)
    offsets = torch.cat([size.new_zeros(1), size.cumsum(0)])
    starts = torch.tensor([0, *plan.active * epochs]).cumsum(0).tolist()
    label = (samples & 1).to(dtype)
    return Batches(
        plan.order, plan.owner.repeat(epochs), starts, offsets, samples >> 1, label, n_items
    )


def _cut(n_samples: Tensor, batch_size: int) -> _Plan:
    """Cut each user's samples, one after the other, into batches."""
    per_user = (n_samples + batch_size - 1) // batch_size  # batches of each user
    order = torch.argsort(per_user, descending=True, stable=True)
    active = (per_user.numel() - torch.bincount(per_user).cumsum(0))[:-1].tolist()
    number = torch.arange(len(active)).repeat_interleave(torch.tensor(active, dtype=torch.int64))
    owner = torch.cat([order[:count] for count in active]) if active else order[:0]
    size = (n_samples[owner] - number * batch_size).clamp_max(batch_size)
    first = (n_samples.cumsum(0) - n_samples)[owner] + number * batch_size
    shift = first - (size.cumsum(0) - size)
    sample = shift.repeat_interleave(size)
    sample += torch.arange(sample.numel())
    return _Plan(order, active, owner, size, sample)


def _draw_epoch(
    key: Key, train: Ragged, known: Tensor, n_samples: Tensor, negatives: int, batch_size: int
) -> Ragged:
    """Samples of one pass in the order of the users' batches, as ``2 * item + label``."""
    drawn = sample_negatives(key.fold("negatives"), train, known.shape[1], negatives, known)
    drawn = drawn.reshape(train.values.numel(), negatives)
    columns = [2 * train.values[:, None] + 1, 2 * drawn]
    packed = torch.cat(columns, dim=1).reshape(-1)
    offsets = torch.cat([n_samples.new_zeros(1), n_samples.cumsum(0)])
    if packed.numel() > int(offsets[-1]):
        packed = packed[packed >= 0]  # places without a negative
    _shuffle(key.fold("shuffle"), Ragged(packed, offsets), batch_size)
    return Ragged(packed, offsets)


def _shuffle(key: Key, samples: Ragged, batch_size: int) -> None:
    """Shuffle the samples of each user in place; a user with one batch needs no shuffle."""
    many = (samples.lengths > batch_size).nonzero().flatten()
    if not many.numel():
        return
    places = Ragged(torch.arange(samples.values.numel()), samples.offsets).take(many)
    visit = shuffle_rows(key.take(many).take(places.rows), places.rows, places.positions)
    shuffled = samples.values.index_select(0, places.values.index_select(0, visit))
    samples.values.index_copy_(0, places.values, shuffled)
