"""Matrix factorisation."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from coterie.core.models.recommender import (
    NO_SIDES,
    Pairs,
    Recommender,
    SideMap,
    Sides,
    Triples,
    rows_of,
    side_map,
    table,
)
from coterie.core.tensors.keys import Key

Biases = Literal["additive", "broadcast"]


class MF(Recommender):
    """Matrix factorisation: s_ui = <p_u, q_i>, with biases s_ui = m + b_u + b_i + <p_u, q_i>.

    Koren, Bell and Volinsky, Computer 42(8), 2009; on implicit data the logit of a pair. Trained
    on `Triples` it is BPR-MF (Rendle et al., UAI 2009); m and b_u then cancel.

    Biases that are broadcast are added to every coordinate of a vector instead,
    s_ui = m + <p_u + b_u 1, q_i + b_i 1>, as in the public code of Diao et al. (arXiv 2110.13340).
    They add no vector that p_u could not be, only another path of training.

    Side information x_u and y_i adds <p_u, W x_u + c> + <q_i, W' y_i + c'>, of vectors with their
    broadcast biases, as the same code does.

    Args:
        n_users: number of users.
        n_items: number of items.
        dim: length d of the vectors.
        key: for the start, N(0, 0.01²); biases start at 0, maps of side information as in Glorot
            and Bengio (2010).
        biases: how m, b_u and b_i enter; None = not at all.
        l2: weight of the mean over the batch of the squared norms of the vectors and biases (not
            m) in it; unlike weight decay it leaves rows outside the batch alone.
        sides: side information.
        offset: where m starts; 0, or better the mean rating, since steps of one size would take
            long to get there.
    """

    def __init__(
        self,
        n_users: int,
        n_items: int,
        dim: int,
        key: Key,
        biases: Biases | None = None,
        l2: float = 0.0,
        sides: Sides = NO_SIDES,
        offset: float = 0.0,
    ) -> None:
        super().__init__(n_users, n_items)
        with key.torch_rng():
            self.users = table(n_users, dim)
            self.items = table(n_items, dim)
            self.user_bias = table(n_users, 1, sd=0.0) if biases else None
            self.item_bias = table(n_items, 1, sd=0.0) if biases else None
            self.user_side = side_map(sides.users, dim)
            self.item_side = side_map(sides.items, dim)
        self.offset = nn.Parameter(torch.tensor(offset)) if biases else None
        self.broadcast = biases == "broadcast"
        self.l2 = l2

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        (p, of_user), (q, of_item) = self._of_users(user), self._of_items(item)
        return self._total((p * q).sum(-1), of_user, of_item)

    def item_scores(self, user: Tensor) -> Tensor:
        """Logits of all items: ``(C,)`` int64 -> ``(C, n_items)``, one matrix product."""
        (p, of_user), (q, of_item) = self._of_users(user), self._of_items(None)
        return self._total(p @ q.T, None if of_user is None else of_user[:, None], of_item)

    def score_cells(self, user: Tensor, row: Tensor, item: Tensor) -> Tensor:
        """Logits of cells in the rows of some users, see `Recommender.score_cells`."""
        (p, of_user), (q, of_item) = self._of_users(user), self._of_items(None)
        # One product for all pairs is faster where every hundredth of them is asked for.
        product = (p @ q.T).take(row * self.n_items + item)
        shifts = (
            None if shift is None else shift.index_select(0, place)
            for shift, place in ((of_user, row), (of_item, item))
        )
        return self._total(product, *shifts)

    def loss(self, batch: Pairs | Triples) -> Tensor:
        """Mean loss of a batch plus the L2 penalty of the rows in it, ``()``."""
        loss = super().loss(batch)
        return loss + self.l2 * self._squared_norm(batch) if self.l2 else loss

    def _of_users(self, user: Tensor) -> tuple[Tensor, Tensor | None]:
        return _side(self.users, self.user_bias, self.user_side, self.broadcast, user)

    def _of_items(self, item: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return _side(self.items, self.item_bias, self.item_side, self.broadcast, item)

    def _total(self, product: Tensor, *shifts: Tensor | None) -> Tensor:
        """Add to products what there is of the rest of the score."""
        for shift in (*shifts, self.offset):
            product = product if shift is None else product + shift
        return product

    def _squared_norm(self, batch: Pairs | Triples) -> Tensor:
        items = [batch.positive, batch.negative] if isinstance(batch, Triples) else [batch.item]
        parts = [self.users(batch.user), *map(self.items, items)]
        if self.user_bias is not None and self.item_bias is not None:
            parts += [self.user_bias(batch.user), *map(self.item_bias, items)]
        return torch.stack([part.square().sum(-1).mean() for part in parts]).sum()


def _side(
    vectors: nn.Embedding,
    bias: nn.Embedding | None,
    side: SideMap | None,
    broadcast: bool,
    number: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Vectors of some users or items, ``(..., d)``, and what they add to each of their scores."""
    found, shift = rows_of(vectors, number), None
    if bias is not None and broadcast:
        found = found + rows_of(bias, number)
    elif bias is not None:
        shift = rows_of(bias, number)[..., 0]
    if side is not None:
        known = (found * side(number)).sum(-1)
        shift = known if shift is None else shift + known
    return found, shift
