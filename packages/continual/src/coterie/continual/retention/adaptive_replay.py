"""Adaptive replay memory, the client side of F³CRec (section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.continual.retention.distillation import Distillation
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ordering import sorted_rows


class AdaptiveReplay(Distillation):
    """Replay fewer of the remembered items the more the user's taste has shifted.

    Δ_u = Σ_k |rank(i_k) - k| over S_u (Eq. 2), δ_u = exp(-ε Δ_u) (Eq. 3), and the memory is a
    draw of ⌊δ_u N⌋ items of S_u without replacement (Eq. 4), anew for every batch (Algorithm 1,
    line 7).
    """

    def choose(self, items: Tensor, scores: Tensor, key: Key) -> Tensor:
        """Draw M_u, ``(A, N)`` bool (Eq. 4)."""
        count = replay_count(preference_shift(items, scores), self.settings.epsilon, items.shape[1])
        return draw_without_replacement(key, count, items.shape[1])


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
