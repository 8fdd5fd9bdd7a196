"""SPP: stability and plasticity proxies (Lee et al., KDD 2024), split over the parties."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.continual.backbones import Backbone, Params
from coterie.continual.messages import ClientState, ItemTable, LookBack
from coterie.continual.rehearsal import Rehearsal
from coterie.continual.retention import Memory, Retention, score_items
from coterie.continual.settings import SPPSettings
from coterie.core.data.interactions.splits import UserRows
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


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
    weight λ_r exp(-round / fade). The paper applies the proxies "to both private (client) and
    public (server) parameters": the client keeps S, P of Φ_u, the server those of Q. Our readings:
    mean over the drawn items in place of the sum (the items' step is η|I|), annealing in rounds,
    and only the current block's train items masked, as the earlier ones may not be revisited.

    The proxies stand still within a block and draw from their A best items alone. So the server
    sends its two tables once, at the start of a block; the client lists those items and their
    labels, ranks its student anew with the item table of a round, every `refresh` rounds, and
    forgets lists and draws, which miss its own train items, at the end of the block.
    """

    def __init__(self, backbone: Backbone, settings: SPPSettings) -> None:
        super().__init__(backbone)
        self.settings = settings
        self.sizes = {"slow": settings.n_slow, "fast": settings.n_fast}
        self.listed = sum(min(size, settings.horizon) for size in self.sizes.values())

    def empty(self, params: Params) -> Memory:
        """Proxies of Φ_u, without room for their lists of A items and for the drawn ones.

        With lists, of each proxy: ``params``, ``items`` and labels ``taught`` ``(C, A)`` in the
        order of its ranking, and ``listed`` ``(C,)``, how many of these places count. ``n_old``
        ``(C,)`` is the number of items they rank. Of the draw: ``items``, labels ``taught`` and
        ``drawn`` ``(C, M)``, 0 for a free place.
        """
        first = next(iter(params.values()))
        n_users = first.shape[0]
        nothing = first.new_zeros((n_users, 0))
        lists = {
            name: {
                "params": {part: value.clone() for part, value in params.items()},
                "items": nothing.int(),
                "taught": nothing,
                "listed": torch.zeros(n_users, dtype=torch.int64),
            }
            for name in self.sizes
        }
        return lists | {
            "n_old": torch.zeros(n_users, dtype=torch.int64),
            "items": nothing.int(),
            "taught": nothing,
            "drawn": nothing,
        }

    def at_block_start(self, mine: ClientState, down: LookBack, data: UserRows) -> Memory:
        """List what each proxy ranks best; newcomers have no past self to list from."""
        assert down.slow is not None
        assert down.fast is not None
        n_old = down.slow.shape[0]
        own = _own(data.train, n_old)
        first = mine.memory["taught"]
        nothing = first.new_zeros((first.shape[0], self.listed))
        # After the first block S and P are the same model: only S is used.
        return mine.memory | {
            "items": nothing.int(),
            "taught": nothing,
            "drawn": nothing,
            "n_old": torch.full_like(mine.blocks, n_old),
            "slow": self._list(mine.memory["slow"], down.slow, own, mine.blocks > 0),
            "fast": self._list(mine.memory["fast"], down.fast, own, mine.blocks > 1),
        }

    def before_training(
        self, mine: ClientState, down: ItemTable, data: UserRows, key: Key
    ) -> Memory:
        """Draw the items to be replayed from the lists and the student's current ranks."""
        due = down.round % self.settings.refresh == 0
        if not due or not bool((mine.memory["slow"]["listed"] > 0).any()):
            return mine.memory
        n_items = down.items.shape[0]
        masked = data.train.mask(n_items) | (torch.arange(n_items) >= mine.memory["n_old"][:, None])
        student = ranks(score_items(self.backbone, mine.params, down.items), masked)
        parts = [
            self._draw_from(mine.memory[name], student, size, key.fold("draw", name))
            for name, size in self.sizes.items()
        ]
        items, taught, found = (torch.cat(column, 1) for column in zip(*parts, strict=True))
        drawn = _without_duplicates(items, taught, found)
        return mine.memory | {
            "items": items.masked_fill(~drawn, 0).int(),
            "taught": taught.masked_fill(~drawn, 0.0),
            "drawn": drawn.to(taught.dtype),
        }

    def replay(self, mine: ClientState, round: int, key: Key) -> Rehearsal | None:
        """Replay of the drawn items, for every batch; fades with the rounds of a block."""
        drawn = mine.memory["drawn"]
        if not bool((drawn > 0).any()):
            return None
        strength = self.settings.strength * math.exp(-round / self.settings.fade)
        weights = strength * drawn / drawn.sum(1, keepdim=True).clamp_min(1)
        return Rehearsal(mine.memory["items"], mine.memory["taught"], weights)

    def at_block_end(self, mine: ClientState, table: Tensor, data: Any, key: Key) -> Memory:
        """Move the proxies of Φ_u towards the student; the first block sets them to it."""
        first = mine.blocks == 0
        memory = self.empty(mine.best)
        for name, momentum in (("slow", self.settings.slow), ("fast", self.settings.fast)):
            moved = moving_average(mine.memory[name]["params"], mine.best, momentum)
            kept = tree.where_rows(first, mine.best, moved)
            memory[name]["params"] = kept
        return memory

    def _list(self, proxy: Memory, table: Tensor, own: Tensor, exists: Tensor) -> Memory:
        """List a proxy's A best items that are not the user's own, with their labels."""
        scores = score_items(self.backbone, proxy["params"], table)
        best = _order(scores, own)[:, : self.settings.horizon]
        listed = ((~own).sum(1) * exists).clamp_max(best.shape[1])
        free = torch.arange(best.shape[1]) >= listed[:, None]
        missing = (0, self.settings.horizon - best.shape[1])
        taught = torch.sigmoid(scores.gather(1, best)).masked_fill(free, 0.0)
        return proxy | {
            "items": pad(best.masked_fill(free, 0), missing).int(),
            "taught": pad(taught, missing),
            "listed": listed,
        }

    def _draw_from(
        self, proxy: Memory, student: Tensor, size: int, key: Key
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw ``size`` items a user by Gumbel top-k: items, labels, and which places hold one."""
        items = proxy["items"].long()
        place = torch.arange(items.shape[1])  # rank_X
        logits = self.settings.epsilon * (student.gather(1, items) - place).to(torch.float64)
        logits[place >= proxy["listed"][:, None]] = -torch.inf
        uniform = key.uniform(place.numel(), dtype=torch.float64).clamp_min(2.0**-53)
        noisy = logits - torch.log(-torch.log(uniform))
        best = noisy.topk(min(size, place.numel()), dim=1)
        taught = proxy["taught"].gather(1, best.indices)
        return items.gather(1, best.indices), taught, best.values > -torch.inf


def _own(train: Ragged, n_items: int) -> Tensor:
    """Which of the first ``n_items`` items are a user's own, ``(C, n_items)`` bool."""
    own = torch.zeros(len(train), n_items, dtype=torch.bool)
    old = train.values < n_items
    own[train.rows[old], train.values[old]] = True
    return own


def _order(scores: Tensor, masked: Tensor) -> Tensor:
    """Items ``(C, n)`` by falling score, equal ones by number, the masked ones last."""
    return scores.masked_fill(masked, -torch.inf).sort(dim=1, descending=True, stable=True).indices


def ranks(scores: Tensor, masked: Tensor) -> Tensor:
    """Zero-based ranks ``(C, n)``, the masked items last."""
    order = _order(scores, masked)
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
