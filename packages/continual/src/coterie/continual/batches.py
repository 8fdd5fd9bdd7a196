"""Local batches of a chunk of users, drawn, shuffled and cut for all of them at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.core.data.interactions.negatives import NO_NEGATIVE, sample_negatives
from coterie.core.data.interactions.places import distinct_places
from coterie.core.tensors.keys import Key
from coterie.core.tensors.masks import where_true
from coterie.core.tensors.ragged import Ragged


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

    def sum_by_user(self, values: Tensor) -> Tensor:
        """Sum one value a sample, ``(s,)``, over each user's samples, ``(A,)``."""
        # No user is without samples, which reduceat would get wrong. A diverged user overflows
        # here; the guard refuses it by name, so numpy need not warn as well.
        if values.device.type != "cpu":
            return torch.segment_reduce(values, "sum", lengths=self.offsets.diff())
        with np.errstate(over="ignore", invalid="ignore"):
            return torch.from_numpy(np.add.reduceat(values.numpy(), self.offsets[:-1].numpy()))


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
        cell: ``(S,)`` int64 place of each sample in the table of its batch number (`Samples`).
        label: ``(S,)`` 1 for a positive, 0 for a negative.
        n_items: columns of such a table.
    """

    order: Tensor
    owner: Tensor
    starts: list[int]
    offsets: Tensor
    cell: Tensor
    label: Tensor
    n_items: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def item(self) -> Tensor:
        """Item of each sample, ``(S,)`` int64."""
        return self.cell % self.n_items

    def terms(self, number: int) -> slice:
        """Terms of one batch number."""
        return slice(self.starts[number], self.starts[number + 1])

    def samples(self, number: int) -> Samples:
        """Samples of one batch number."""
        term = self.terms(number)
        offsets = self.offsets[term.start : term.stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        label = self.label[first:last]
        size = offsets.diff().to(label.dtype)
        return Samples(self.cell[first:last], label, offsets - first, size)


@dataclass(frozen=True)
class _Plan:
    """How one pass is cut into batches; follows from the users' data alone, so it is made once."""

    known: Tensor  # (C, n_items) bool, the users' positives
    n_samples: Tensor  # (C,) positives and negatives of each user
    order: Tensor  # as in `Batches`
    active: list[int]  # users that have more than b batches, for each b
    owner: Tensor  # (K,) as in `Batches`, of one pass
    size: Tensor  # (K,) samples of each term
    source: Tensor  # (S,) where the samples of the terms stand among those of the users
    row: Tensor  # (S,) first cell of each sample's row in the table of its batch number


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
    made_for = ("batches", n_items, negatives, batch_size)
    if made_for not in train.derived:
        train.derived[made_for] = _plan(train, n_items, negatives, batch_size)
    plan: _Plan = train.derived[made_for]
    passes = [_draw_pass(key.fold("epoch", e), train, plan, negatives) for e in range(epochs)]
    cell = [plan.row + (packed >> 1) for packed in passes]
    label = [(packed & 1).to(dtype) for packed in passes]
    starts = torch.tensor([0, *plan.active * epochs]).cumsum(0).tolist()
    offsets = Ragged.from_lengths(plan.source, plan.size.repeat(epochs)).offsets
    owner = plan.owner.repeat(epochs)
    return Batches(plan.order, owner, starts, offsets, _join(cell), _join(label), n_items)


def _plan(train: Ragged, n_items: int, negatives: int, batch_size: int) -> _Plan:
    known = train.mask(n_items)
    has_free = known.sum(1) < n_items  # who has consumed every item has no negatives
    n_samples = train.lengths * (1 + negatives * has_free)
    n_batches = (n_samples + batch_size - 1) // batch_size
    order = torch.argsort(n_batches, descending=True, stable=True)
    active = (len(train) - torch.bincount(n_batches).cumsum(0))[:-1].tolist()
    counts = torch.tensor(active, dtype=torch.int64)
    number = torch.arange(len(active)).repeat_interleave(counts)
    place = torch.arange(number.numel()) - (counts.cumsum(0) - counts)[number]
    owner = order[place]
    size = (n_samples[owner] - number * batch_size).clamp_max(batch_size)
    first = (n_samples.cumsum(0) - n_samples)[owner] + number * batch_size
    shift = first - (size.cumsum(0) - size)
    source = torch.arange(int(size.sum())) + shift.repeat_interleave(size)
    row = (place * n_items).repeat_interleave(size)
    return _Plan(known, n_samples, order, active, owner, size, source, row)


def _draw_pass(key: Key, train: Ragged, plan: _Plan, negatives: int) -> Tensor:
    """Samples of one pass in the order of the terms, ``(S,)`` as ``2 * item + label``.

    Negatives are drawn alike and independently, so their order is random already: to shuffle is
    to find places for the positives among them.
    """
    n_items, n_samples = plan.known.shape[1], plan.source.numel()
    drawn = sample_negatives(key.fold("negatives"), train, n_items, negatives, plan.known)
    place = distinct_places(key.fold("shuffle"), train, plan.n_samples)
    if place.numel() + drawn.numel() > n_samples:
        drawn = drawn[drawn != NO_NEGATIVE]
    packed = torch.empty(n_samples, dtype=torch.int64)
    packed.scatter_(0, place, 2 * train.values + 1)
    free = torch.ones(n_samples, dtype=torch.bool).index_fill_(0, place, False)
    packed.scatter_(0, where_true(free), 2 * drawn)
    return packed.index_select(0, plan.source)


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
