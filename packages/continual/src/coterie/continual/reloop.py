"""RLP2: ReLoop2's error memory (Zhu et al., KDD 2023), one memory for each user."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.continual.backbones import Backbone, Params
from coterie.continual.messages import ClientState
from coterie.continual.retention import Memory, Retention, score_items
from coterie.continual.settings import RLP2Settings
from coterie.core.data.interactions.negatives import sample_negatives
from coterie.core.tensors.keys import Key


class ErrorMemory(Retention):
    """Correct predictions by the errors on similar samples; training is that of FT.

    The memory holds samples (h_i, y_i, b_i): hidden vector, label, the model's prediction. For a
    query h the k most similar samples get attention a_i = softmax(cos(h, h_i) / τ), and

        y_err = γ (Σ a_i y_i - y_base) + (1 - γ) (Σ a_i y_i - Σ a_i b_i)
        y     = clamp(y_base + λ y_err, 0, 1).

    Our reading for clients that may not revisit data (F³CRec says only "user-wise memory"): at
    the end of a block the user writes positives of the block's train part and as many sampled
    negatives, over what was there; h is recomputed from the stored items, so it is never stale.
    """

    corrects = True

    def __init__(self, backbone: Backbone, settings: RLP2Settings) -> None:
        super().__init__(backbone)
        self.settings = settings

    def empty(self, params: Params) -> Memory:
        """``(C, capacity)`` items (-1 = free place), labels y and predictions b."""
        first = next(iter(params.values()))
        shape = (first.shape[0], self.settings.capacity)
        return {
            "items": torch.full(shape, -1, dtype=torch.int32),
            "label": first.new_zeros(shape),
            "predicted": first.new_zeros(shape),
        }

    def at_block_end(self, mine: ClientState, table: Tensor, data: Any, key: Key) -> Memory:
        """Write the block's training samples over the memory."""
        memory = self.empty(mine.params)
        half = self.settings.capacity // 2
        train = data.train
        negative = sample_negatives(key.fold("error memory"), train, table.shape[0], 1)
        from_end = (train.lengths[train.rows] - 1) - train.positions  # 0 = the newest positive
        kept = (from_end < half) & (negative >= 0)
        row, place = train.rows[kept], from_end[kept]
        for offset, label, items in ((0, 1.0, train.values[kept]), (half, 0.0, negative[kept])):
            memory["items"][row, place + offset] = items.int()
            memory["label"][row, place + offset] = label
        predicted = torch.sigmoid(score_items(self.backbone, mine.best, table))
        memory["predicted"] = predicted.gather(1, memory["items"].clamp_min(0).long())
        error = (memory["label"] - memory["predicted"]).abs()
        memory["items"][error <= self.settings.threshold] = -1
        return memory

    def correct(self, scores: Tensor, mine: ClientState, table: Tensor) -> Tensor:
        """Corrected probabilities, float64; equal ones (clamped) keep the order of the base model.

        So that they do, an item gets 1e-9 times its place in that order added.
        """
        base = torch.sigmoid(scores.double())
        corrected = torch.empty_like(base)
        for user in range(scores.shape[0]):  # once a block: (n, capacity) similarities at a time
            corrected[user] = self._correct_user(base[user], user, mine, table)
        # By the scores themselves: probabilities near 0 and 1 are equal where scores are not.
        worst_first = scores.sort(dim=1, descending=True, stable=True).indices.flip(1)
        place = torch.linspace(0, 1e-9, scores.shape[1], dtype=base.dtype).expand_as(base)
        return corrected.scatter_add(1, worst_first, place)

    def _correct_user(self, base: Tensor, user: int, mine: ClientState, table: Tensor) -> Tensor:
        used = mine.memory["items"][user] >= 0
        if not bool(used.any()):
            return base
        items = mine.memory["items"][user][used]
        label, predicted = (mine.memory[name][user][used] for name in ("label", "predicted"))
        hidden = torch.nn.functional.normalize(self._hidden(user, mine, table), dim=1)
        near = (hidden @ hidden[items].T).topk(min(self.settings.neighbours, items.numel()), dim=1)
        attention = torch.softmax(near.values / self.settings.temperature, dim=1)
        mean_label = (attention * label[near.indices]).sum(1)
        mean_predicted = (attention * predicted[near.indices]).sum(1)
        gamma = self.settings.gamma
        error = gamma * (mean_label - base) + (1 - gamma) * (mean_label - mean_predicted)
        return (base + self.settings.strength * error).clamp(0, 1)

    def _hidden(self, user: int, mine: ClientState, table: Tensor) -> Tensor:
        """Hidden vectors h of all items, ``(n, d or 2d)``.

        That is p∘q for FedMF, [p; q] for FedNCF, q for PFedRec.
        """
        own = mine.best.get("user")
        if own is None:
            return table
        if "w_item" in mine.best:
            return torch.cat([own[user].expand(table.shape[0], -1), table], dim=1)
        return own[user] * table
