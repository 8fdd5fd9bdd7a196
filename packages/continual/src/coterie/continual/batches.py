"""Local batches of a chunk of users, drawn, shuffled and cut for all of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from coterie.core.data.interactions.negatives import (
    NEGATIVE_ATTEMPTS,
    NO_NEGATIVE,
    PLACE_ATTEMPTS,
    deal_key,
    distinct_places,
    sample_negatives,
)
from coterie.core.kernels import switch
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ordering import where_true
from coterie.core.tensors.stacked import Ragged


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
class Draws:
    """The samples of all local batches of C users, in the order of `Batches`, before they are put.

    Attributes:
        plan: how each pass is cut.
        epochs: passes.
        packed: ``(S,)`` ``2 * item + label`` of each sample.
        of_pass: first sample of each term of a pass, and their number at the end.
    """

    plan: Plan
    epochs: int
    packed: Tensor
    of_pass: Tensor

    @cached_property
    def owner(self) -> Tensor:
        """User of each term, ``(K,)`` int64."""
        owner = self.plan.owner
        return owner if self.epochs == 1 else owner.repeat(self.epochs)

    @cached_property
    def starts(self) -> list[int]:
        """First term of each batch number, and K at the end."""
        return list(accumulate(self.plan.active * self.epochs, initial=0))

    @cached_property
    def offsets(self) -> Tensor:
        """First sample of each term, and S at the end, ``(K + 1,)`` int64."""
        if self.epochs == 1:
            return self.of_pass
        return Ragged.from_lengths(self.packed, self.of_pass.diff().repeat(self.epochs)).offsets

    @cached_property
    def ends(self) -> Tensor:
        """Place behind the last sample of each term, ``(K,)`` int64."""
        return self.offsets[:-1] + self.plan.size.repeat(self.epochs)


class Plan:
    """How one pass is cut into batches; follows from the users' data alone, so it is made once.

    Args:
        train: positives of each user.
        n_items: items known so far.
        negatives: for each positive.
        batch_size: samples in a batch.

    Attributes:
        n_samples: ``(C,)`` positives and negatives of each user.
        order: as in `Batches`.
        active: users that have more than b batches, for each b.
        owner: ``(K,)`` as in `Batches`, of one pass.
        size: ``(K,)`` samples of each term.
    """

    def __init__(self, train: Ragged, n_items: int, negatives: int, batch_size: int) -> None:
        # Rows of its own, for those given keep this plan: a ring of both would be freed much later.
        self.train, self.n_items = Ragged(train.values, train.offsets), n_items
        self.negatives, self.batch_size = negatives, batch_size
        self.n_samples = train.lengths * (1 + negatives * self._has_free())
        n_batches = (self.n_samples + batch_size - 1) // batch_size
        self.order = torch.argsort(n_batches, descending=True, stable=True)
        self.active: list[int] = (len(train) - n_batches.bincount().cumsum(0))[:-1].tolist()
        counts = torch.tensor(self.active, dtype=torch.int64)
        self._number = torch.arange(len(self.active)).repeat_interleave(counts)
        self._place = torch.arange(self._number.numel()) - (counts.cumsum(0) - counts)[self._number]
        self.owner = self.order[self._place]
        self.size = (self.n_samples[self.owner] - self._number * batch_size).clamp_max(batch_size)

    @cached_property
    def offsets(self) -> Tensor:
        """First sample of each term, and S at the end, ``(K + 1,)`` int64."""
        return Ragged.from_lengths(self.size, self.size).offsets

    def offsets_with(self, room: Tensor | None) -> Tensor:
        """The same with so many free places behind each term of a user, ``(C,)`` int64."""
        if room is None:
            return self.offsets
        size = self.size + room[self.owner]
        return Ragged.from_lengths(size, size).offsets

    @cached_property
    def rank(self) -> Tensor:
        """Place of each user in `order`, ``(C,)`` int64."""
        return torch.empty_like(self.order).scatter_(0, self.order, torch.arange(len(self.order)))

    @cached_property
    def known(self) -> Tensor:
        """The users' positives, ``(C, n_items)`` bool."""
        return self.train.mask(self.n_items)

    @cached_property
    def source(self) -> Tensor:
        """Where the samples of the terms stand among those of the users, ``(S,)`` int64."""
        first = self.n_samples.cumsum(0) - self.n_samples
        first = first[self.owner] + self._number * self.batch_size
        shift = first - (self.size.cumsum(0) - self.size)
        return torch.arange(int(self.size.sum())) + shift.repeat_interleave(self.size)

    @cached_property
    def row(self) -> Tensor:
        """First cell of each sample's row in the table of its batch number, ``(S,)`` int64."""
        return (self._place * self.n_items).repeat_interleave(self.size)

    def _has_free(self) -> Tensor:
        """Who has not consumed every item, ``(C,)`` bool: the others have no negatives."""
        free = self.train.lengths < self.n_items
        if not bool(free.all()):
            free = self.known.sum(1) < self.n_items
        return free


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
    draws = draw_samples(key, plan_of(train, n_items, negatives, batch_size), epochs)
    plan, passes = draws.plan, draws.packed.chunk(epochs)
    cell = [plan.row + (packed >> 1) for packed in passes]
    label = (draws.packed & 1).to(dtype)
    starts, offsets = draws.starts, draws.offsets
    return Batches(plan.order, draws.owner, starts, offsets, _join(cell), label, n_items)


def plan_of(train: Ragged, n_items: int, negatives: int, batch_size: int) -> Plan:
    """How the users' samples are cut, kept with their positives; arguments as of `draw_batches`."""
    made_for = ("batches", n_items, negatives, batch_size)
    if made_for not in train.derived:
        train.derived[made_for] = Plan(train, n_items, negatives, batch_size)
    found: Plan = train.derived[made_for]
    return found


def draw_samples(
    key: Key, plan: Plan, epochs: int, *, in_order: bool = True, room: Tensor | None = None
) -> Draws:
    """Draw negatives and which samples are in which batch, for C users at once.

    Args:
        key: the users' keys, ``state`` of shape ``(C,)``.
        plan: of their data.
        epochs: passes E.
        in_order: whether the order within a batch is needed; without it positives come first,
            drawn by a compiled loop.
        room: ``(C,)`` int64 places to leave free behind each batch of a user; out of order alone.
    """
    offsets = plan.offsets_with(room)
    passes = [_draw_pass(key.fold("epoch", e), plan, offsets, in_order) for e in range(epochs)]
    return Draws(plan, epochs, _join(passes), offsets)


def _draw_pass(key: Key, plan: Plan, offsets: Tensor, in_order: bool) -> Tensor:
    """Samples of one pass in the order of the terms, ``(S,)`` as ``2 * item + label``.

    Negatives are drawn alike and independently, so their order is random already: to shuffle is
    to find places for the positives among them.
    """
    train, n_items = plan.train, plan.n_items
    on_cpu = key.state.device.type == "cpu"
    # Another order within a batch rounds otherwise, so it may not depend on what is loaded by now.
    if on_cpu and (not in_order or switch.worthwhile(int(plan.offsets[-1]))):
        return _draw_compiled(key, plan, offsets, in_order)
    n_samples = plan.source.numel()
    drawn = sample_negatives(key.fold("negatives"), train, n_items, plan.negatives, plan.known)
    place = distinct_places(key.fold("shuffle"), train, plan.n_samples)
    if place.numel() + drawn.numel() > n_samples:
        drawn = drawn[drawn != NO_NEGATIVE]
    packed = torch.empty(n_samples, dtype=torch.int64)
    packed.scatter_(0, place, 2 * train.values + 1)
    free = torch.ones(n_samples, dtype=torch.bool).index_fill_(0, place, False)
    packed.scatter_(0, where_true(free), 2 * drawn)
    return packed.index_select(0, plan.source)


def _draw_compiled(key: Key, plan: Plan, offsets: Tensor, in_order: bool) -> Tensor:
    """The same by a compiled loop over the users, ``(S,)`` int32."""
    from coterie.core.kernels.drawing import draw_pass  # loads numba

    negatives, places = key.fold("negatives"), key.fold("shuffle")
    packed = draw_pass(
        (negatives.unsigned(), places.unsigned(), deal_key(places).unsigned()),
        plan.train.values.numpy(),
        plan.train.offsets.numpy(),
        (plan.n_items, plan.negatives, plan.batch_size),
        (NEGATIVE_ATTEMPTS, PLACE_ATTEMPTS),
        plan.n_samples.numpy(),
        plan.rank.numpy(),
        np.cumsum([0, *plan.active]),
        offsets.numpy(),
        in_order,
    )
    return torch.from_numpy(packed)


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
