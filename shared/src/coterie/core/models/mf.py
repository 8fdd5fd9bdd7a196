"""Matrix factorisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.models.batches import Pairs, Triples
from coterie.core.models.recommender import Recommender, table
from coterie.core.tensors.keys import Key


class MF(Recommender):
    """Matrix factorisation: s_ui = <p_u, q_i>, with biases s_ui = m + b_u + b_i + <p_u, q_i>.

    Koren, Bell and Volinsky, Computer 42(8), 2009; on implicit data the logit of a pair. Trained
    on `Triples` it is BPR-MF (Rendle et al., UAI 2009); m and b_u then cancel.

    Args:
        n_users: number of users.
        n_items: number of items.
        dim: length d of the vectors.
        key: for the start, N(0, 0.01²); biases start at 0.
        biases: whether to add m, b_u and b_i.
        l2: weight of the mean over the batch of the squared norms of the vectors and biases (not
            m) in it; unlike weight decay it leaves rows outside the batch alone.
    """

    def __init__(
        self,
        n_users: int,
        n_items: int,
        dim: int,
        key: Key,
        biases: bool = False,
        l2: float = 0.0,
    ) -> None:
        super().__init__(n_users, n_items)
        with key.torch_rng():
            self.users = table(n_users, dim)
            self.items = table(n_items, dim)
            self.user_bias = table(n_users, 1, sd=0.0) if biases else None
            self.item_bias = table(n_items, 1, sd=0.0) if biases else None
        self.offset = nn.Parameter(torch.zeros(())) if biases else None
        self.l2 = l2

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        product = (self.users(user) * self.items(item)).sum(-1)
        if self.user_bias is None or self.item_bias is None:
            return product
        return product + self.user_bias(user)[..., 0] + self.item_bias(item)[..., 0] + self.offset

    def item_scores(self, user: Tensor) -> Tensor:
        """Logits of all items: ``(C,)`` int64 -> ``(C, n_items)``, one matrix product."""
        product = self.users(user) @ self.items.weight.T
        if self.user_bias is None or self.item_bias is None:
            return product
        return product + self.user_bias(user) + self.item_bias.weight.T + self.offset

    def loss(self, batch: Pairs | Triples) -> Tensor:
        """Mean loss of a batch plus the L2 penalty of the rows in it, ``()``."""
        loss = super().loss(batch)
        return loss + self.l2 * self._squared_norm(batch) if self.l2 else loss

    def _squared_norm(self, batch: Pairs | Triples) -> Tensor:
        items = [batch.positive, batch.negative] if isinstance(batch, Triples) else [batch.item]
        parts = [self.users(batch.user), *map(self.items, items)]
        if self.user_bias is not None and self.item_bias is not None:
            parts += [self.user_bias(batch.user), *map(self.item_bias, items)]
        return torch.stack([part.square().sum(-1).mean() for part in parts]).sum()
