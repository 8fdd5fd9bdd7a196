"""SPP: stability and plasticity proxies (Lee et al., KDD 2024), split over the parties."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from coterie.continual.backbones import Backbone, Params
from coterie.continual.local_training import ChooseReplay, Replay
from coterie.continual.messages import Profile, ProxyTables
from coterie.continual.retention.base import Memory, Retention, score_items
from coterie.continual.settings import SPPSettings
from coterie.core import tree
from coterie.core.ragged import Ragged
from coterie.core.seeding import Key


def moving_average(old: Any, new: Any, momentum: float) -> Any:
    """Average two trees of parameters: momentum * old + (1 - momentum) * new.

    Example:
        >>> moving_average(torch.tensor(0.0), torch.tensor(1.0), 0.75).item()
        0.25
    """
    return tree.map_tensors(lambda a, b: momentum * a + (1 - momentum) * b, old, new)


class Proxies(Retention):
    """Replay items that past selves rank much higher than the current student does.

    With W_t the student after block t, S_t = w_s S_{t-1} + (1 - w_s) W_t (slow, stability) and
    P_t = w_p P_{t-1} + (1 - w_p) W_t (fast, plasticity), S_0 = P_0 = W_0. Each proxy X draws n_X
    items without replacement with probability proportional to

        exp(ε (rank_W(i) - rank_X(i))) for items with rank_X(i) < A,

    and the student is taught sigmoid(score_X) on them (an item of both: the larger label), with
    weight λ_r exp(-round / 10). The paper applies the proxies "to both private (client) and public
    (server) parameters": the client keeps S, P of Φ_u, the server those of Q. Our readings: mean
    over the drawn items in place of the sum (the items' step is η|I|), annealing in rounds, and
    only the current block's train items masked, as the earlier ones may not be revisited.
    """

    def __init__(self, backbone: Backbone, settings: SPPSettings) -> None:
        super().__init__(backbone)
        self.settings = settings

    def empty(self, params: Params) -> Memory:
        """Proxies of Φ_u and room for the drawn items (weight 0 = a free place), ``(C, M)``."""
        first = next(iter(params.values()))
        shape = (first.shape[0], self.settings.n_slow + self.settings.n_fast)
        return {
            "slow": {name: value.clone() for name, value in params.items()},
            "fast": {name: value.clone() for name, value in params.items()},
            "items": torch.zeros(shape, dtype=torch.int64),
            "taught": first.new_zeros(shape),
            "drawn": first.new_zeros(shape),
        }

    def at_block_end(self, mine: Profile, table: Tensor, data: Any, key: Key) -> Memory:
        """Move the proxies of Φ_u towards the student; the first block sets them to it."""
        first = mine.blocks == 0
        updated = dict(mine.memory)
        for name, momentum in (("slow", self.settings.slow), ("fast", self.settings.fast)):
            moved = moving_average(mine.memory[name], mine.best, momentum)
            updated[name] = tree.map_tensors(lambda m, w: _where(first, w, m), moved, mine.best)
        return updated | {"drawn": torch.zeros_like(mine.memory["drawn"])}

    def draw(self, mine: Profile, down: ProxyTables, train: Ragged, key: Key) -> Memory:
        """Draw the items to be replayed, from the current ranks of student and proxies."""
        n_old = down.slow.shape[0]
        own = train.mask(down.items.shape[0])[:, :n_old]
        student = _ranks(score_items(self.backbone, mine.params, down.items[:n_old]), own)
        parts = []
        for name, table, count in (
            ("slow", down.slow, self.settings.n_slow),
            ("fast", down.fast, self.settings.n_fast),
        ):
            scores = score_items(self.backbone, mine.memory[name], table)
            items, found = self._draw_from(_ranks(scores, own), student, own, count, key.fold(name))
            if name == "fast":
                # At the first update S and P are the same model: only S is used.
                found = found & (mine.blocks > 1)[:, None]
            parts.append((items, torch.sigmoid(scores.gather(1, items)), found))
        items, taught, found = (torch.cat(column, 1) for column in zip(*parts, strict=True))
        found = found & (mine.blocks > 0)[:, None]
        drawn = _without_duplicates(items, taught, found)
        return mine.memory | {"items": items, "taught": taught, "drawn": drawn.to(taught.dtype)}

    def replay(self, mine: Profile, round: int, key: Key) -> ChooseReplay | None:
        """Replay of the drawn items, for every batch; fades with the rounds of a block."""
        drawn = mine.memory["drawn"]
        if not bool((drawn > 0).any()):
            return None
        strength = self.settings.strength * math.exp(-round / 10)
        weights = strength * drawn / drawn.sum(1, keepdim=True).clamp_min(1)

        def choose(steps: Tensor, users: Tensor, scores: Tensor) -> Replay:
            memory = mine.memory
            everyone = torch.arange(users.numel())
            return Replay(everyone, memory["items"][users], memory["taught"][users], weights[users])

        return choose

    def _draw_from(
        self, proxy: Tensor, student: Tensor, own: Tensor, count: int, key: Key
    ) -> tuple[Tensor, Tensor]:
        """Draw ``count`` items a user by Gumbel top-k; also tells which places hold an item."""
        logits = self.settings.epsilon * (student - proxy).to(torch.float64)
        logits[(proxy >= self.settings.horizon) | own] = -torch.inf
        uniform = key.uniform(logits.shape[1], dtype=torch.float64).clamp_min(2.0**-53)
        best = (logits - torch.log(-torch.log(uniform))).topk(count, dim=1)
        return best.indices, best.values > -torch.inf


def _ranks(scores: Tensor, masked: Tensor) -> Tensor:
    """Zero-based ranks ``(C, n)``, the user's own items last."""
    order = scores.masked_fill(masked, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order)
    return rank.scatter_(1, order, torch.arange(scores.shape[1]).expand_as(order))


def _without_duplicates(items: Tensor, taught: Tensor, found: Tensor) -> Tensor:
    """Which places count when an item stands twice: the one with the larger label."""
    same = items[:, :, None] == items[:, None, :]
    same &= found[:, None, :] & found[:, :, None]
    place = torch.arange(items.shape[1])
    larger = taught[:, None, :] > taught[:, :, None]
    tie = (taught[:, None, :] == taught[:, :, None]) & (place[None, :] < place[:, None])
    return found & ~(same & (larger | tie)).any(2)


def _where(first: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(first.reshape(-1, *[1] * (new.dim() - 1)), new, old)
