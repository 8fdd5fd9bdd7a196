"""What users practise again beside their batches: listed items with soft labels (section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.core.tensors.keys import Key
from coterie.core.tensors.ordering import sorted_rows


@dataclass(frozen=True)
class Replay:
    """Items that a user practises again with soft labels, beside the batch; stacked over C users.

    Adds ``sum_k weight[k] * BCE(sigmoid(s[item[k]]), target[k])`` to the loss.

    Attributes:
        users: ``(A,)`` int64 positions in the chunk of those who replay.
        items: ``(A, M)`` int64.
        targets: ``(A, M)`` soft labels in [0, 1].
        weights: ``(A, M)``; 0 leaves an item out.
    """

    users: Tensor
    items: Tensor
    targets: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Shrinking:
    """A memory that shrinks as the user's taste shifts, and is drawn anew for every batch.

    Δ_u = Σ_k |rank(i_k) - k| over the list (Eq. 2), δ_u = exp(-ε Δ_u) (Eq. 3), and the memory is a
    draw of ⌊δ_u N⌋ of the N listed items without replacement (Eq. 4).

    Attributes:
        epsilon: ε.
        key: of the draws, ``state`` of shape ``(C,)``.
        mean: whether the drawn items share their weight.
    """

    epsilon: float
    key: Key
    mean: bool

    def shared(self, weights: Tensor, items: Tensor, scores: Tensor, key: Key) -> Tensor:
        """Draw, and give the drawn items' weights, ``(A, N)``.

        Args:
            weights: ``(A, N)`` before it is drawn.
            items: ``(A, N)`` int64 in the order of the old ranking.
            scores: ``(A, n_items)`` current scores.
            key: of the draws, ``(A,)``.
        """
        n_listed = items.shape[1]
        count = replay_count(preference_shift(items, scores), self.epsilon, n_listed)
        chosen = draw_without_replacement(key, count, n_listed)
        weights = weights * chosen.to(weights.dtype)
        return weights / chosen.sum(1, keepdim=True).clamp_min(1) if self.mean else weights


@dataclass(frozen=True)
class Rehearsal:
    """What C users practise in a round, beside each of their batches.

    Attributes:
        items: ``(C, N)`` whole numbers; where all are drawn from, in the order of the old ranking.
        targets: ``(C, N)`` soft labels in [0, 1].
        weights: ``(C, N)`` of the items' cross entropies; 0 leaves an item out.
        shrinking: how the items of a batch are drawn; None for all of them.

    Example:
        >>> both = Rehearsal(torch.tensor([[0, 2]]), torch.ones(1, 2), torch.ones(1, 2))
        >>> steps = users = torch.tensor([0])
        >>> both.beside(steps, users, torch.zeros(1, 3)).items.tolist()
        [[0, 2]]
    """

    items: Tensor
    targets: Tensor
    weights: Tensor
    shrinking: Shrinking | None = None

    @cached_property
    def who(self) -> Tensor:
        """Who has something to practise, ``(C,)`` bool."""
        return self.weights.abs().sum(1) > 0

    def room(self) -> Tensor:
        """Most items that each user practises beside a batch, ``(C,)`` int64."""
        return self.who * self.weights.shape[1]

    def beside(self, steps: Tensor, users: Tensor, scores: Tensor) -> Replay:
        """What some users practise beside one batch.

        Args:
            steps: ``(A,)`` int64 batches that each has done.
            users: ``(A,)`` int64 of the C.
            scores: ``(A, n_items)`` current scores.
        """
        place = self.who[users].nonzero().flatten()
        who = users[place]
        items, weights = self.items[who].long(), self.weights[who]
        if self.shrinking is not None:
            key = self.shrinking.key.take(who).fold(steps[place])
            weights = self.shrinking.shared(weights, items, scores[place], key)
        return Replay(place, items, self.targets[who], weights)


def preference_shift(items: Tensor, scores: Tensor) -> Tensor:
    """Δ_u (Eq. 2), ``(A,)`` int64: how far remembered items have moved in the user's ranking.

    Args:
        items: ``(A, N)`` int64, S_u in the order of the old ranking.
        scores: ``(A, n_items)`` current scores.

    Example:
        >>> scores = torch.tensor([[0.9, 0.5, 0.7]])
        >>> preference_shift(torch.tensor([[0, 1]]), scores).tolist()
        [1]
    """
    n_listed = items.shape[1]
    # Ranks from one sort of the row: the number of scores above s, plus one.
    ascending = sorted_rows(scores)
    not_above = torch.searchsorted(ascending, scores.gather(1, items), right=True)
    rank = scores.shape[1] - not_above + 1
    return (rank - torch.arange(1, n_listed + 1)).abs().sum(1)


def replay_count(shift: Tensor, epsilon: float, n_listed: int) -> Tensor:
    """⌊δ_u N⌋ (Eq. 3 and 4), ``(A,)`` int64.

    Example:
        >>> replay_count(torch.tensor([0, 100]), epsilon=0.006, n_listed=30).tolist()
        [30, 16]
    """
    return (torch.exp(-epsilon * shift.to(torch.float64)) * n_listed).floor().to(torch.int64)


def draw_without_replacement(key: Key, count: Tensor, n: int) -> Tensor:
    """SWOR: a uniform subset of ``count`` out of n for each user, ``(A, n)`` bool."""
    place = key.uniform(n, dtype=torch.float64).argsort(1).argsort(1)
    return place < count[:, None]
