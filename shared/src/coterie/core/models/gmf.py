"""Generalised matrix factorisation (He et al., WWW 2017)."""

from __future__ import annotations

from torch import Tensor

from coterie.core.models.layers import output_layer
from coterie.core.models.recommender import Recommender, table
from coterie.core.models.side_information import NO_SIDES, Sides, side_map
from coterie.core.tensors.keys import Key


class GMF(Recommender):
    """Generalised matrix factorisation: s = h^T (p_u * q_i) (He et al., Eq. 9).

    Side information x_u and y_i makes it h^T (p_u * q_i + p_u * (W x_u + c) + q_i * (W' y_i + c')),
    as in the public code of Diao et al. (arXiv 2110.13340).

    Args:
        n_users: number of users.
        n_items: number of items.
        dim: length of the vectors.
        key: for the start: tables N(0, 0.01²), h uniform as in LeCun et al. (1998), maps of side
            information as in Glorot and Bengio (2010).
        sides: side information.
        offset: whether a constant is added to all scores; it starts at 0.
    """

    def __init__(
        self,
        n_users: int,
        n_items: int,
        dim: int,
        key: Key,
        sides: Sides = NO_SIDES,
        offset: bool = False,
    ) -> None:
        super().__init__(n_users, n_items)
        with key.torch_rng():
            self.users = table(n_users, dim)
            self.items = table(n_items, dim)
            self.out = output_layer(dim, offset)
            self.user_side = side_map(sides.users, dim)
            self.item_side = side_map(sides.items, dim)

    def features(self, user: Tensor, item: Tensor) -> Tensor:
        """Elementwise product p_u * q_i, ``(..., dim)``; ``user`` and ``item`` broadcast."""
        p, q = self.users(user), self.items(item)
        found: Tensor = p * q
        if self.user_side is not None:
            found = found + p * self.user_side(user)
        if self.item_side is not None:
            found = found + q * self.item_side(item)
        return found

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        return self.out(self.features(user, item))[..., 0]

    def score_cells(self, user: Tensor, row: Tensor, item: Tensor) -> Tensor:
        """Logits of cells in the rows of some users, see `Recommender.score_cells`."""
        found = self.weighted(user, row, item, self.out.weight[0])
        return found if self.out.bias is None else found + self.out.bias

    def weighted(self, user: Tensor, row: Tensor, item: Tensor, weight: Tensor) -> Tensor:
        """Features of cells, as `score_cells` has them, times a weight ``(dim,)``; gives ``(n,)``.

        None of the features is made.
        """
        p, q = self.users(user), self.items.weight
        # One product for all pairs is faster where every hundredth of them is asked for.
        found = ((p * weight) @ q.T).take(row * self.n_items + item)
        if self.user_side is not None:
            found = found + ((p * self.user_side(user)) @ weight).index_select(0, row)
        if self.item_side is not None:
            found = found + ((q * self.item_side(None)) @ weight).index_select(0, item)
        return found
