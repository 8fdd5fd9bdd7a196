"""Neural collaborative filtering: GMF, MLP, and both as NeuMF (He et al., WWW 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.models.recommender import (
    NO_SIDES,
    Recommender,
    Sides,
    hidden_layer,
    output_layer,
    rows_of,
    side_map,
    table,
)
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


# A tower of layers over the vectors of user and item (He et al., WWW 2017).


class MLP(Recommender):
    """Tower of ReLU layers on [p_u; q_i], then h^T z (He et al., Eq. 10).

    Side information x_u and y_i makes its input [p_u; q_i; W x_u + c; W' y_i + c'].

    Args:
        n_users: number of users.
        n_items: number of items.
        layers: widths from the input on: ``layers[0]`` is that of [p_u; q_i], hence twice the
            length of a vector; each further one is a layer.
        key: for the start: tables N(0, 0.01²), weights as in Glorot and Bengio (2010), biases 0.
        sides: side information.
        offset: whether a constant is added to all scores; it starts at 0.

    Raises:
        ValueError: ``layers`` has fewer than two widths, or the first is odd.
    """

    def __init__(
        self,
        n_users: int,
        n_items: int,
        layers: Sequence[int],
        key: Key,
        sides: Sides = NO_SIDES,
        offset: bool = False,
    ) -> None:
        super().__init__(n_users, n_items)
        if len(layers) < 2 or layers[0] % 2:
            raise ValueError(f"layers needs two widths or more, the first even, got {layers}")
        self.dim = layers[0] // 2
        with key.torch_rng():
            self.users = table(n_users, self.dim)
            self.items = table(n_items, self.dim)
            self.first = hidden_layer(layers[0] + len(sides) * self.dim, layers[1])
            self.rest = nn.ModuleList(map(hidden_layer, layers[1:-1], layers[2:]))
            self.out = output_layer(layers[-1], offset)
            self.user_side = side_map(sides.users, self.dim)
            self.item_side = side_map(sides.items, self.dim)

    def features(self, user: Tensor, item: Tensor) -> Tensor:
        """Last layer of the tower, ``(..., layers[-1])``; ``user`` and ``item`` broadcast."""
        return self._tower((self._of_users(user) + self._of_items(item)).relu())

    def cell_features(self, user: Tensor, row: Tensor, item: Tensor) -> Tensor:
        """Last layer of the tower for cells, as `score_cells` has them, ``(n, layers[-1])``."""
        of_users, of_items = self._of_users(user), self._of_items(None)
        first = of_users.index_select(0, row).add_(of_items.index_select(0, item))
        return self._tower(first.relu_())

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        return self.out(self.features(user, item))[..., 0]

    def score_cells(self, user: Tensor, row: Tensor, item: Tensor) -> Tensor:
        """Logits of cells in the rows of some users, see `Recommender.score_cells`."""
        return self.out(self.cell_features(user, row, item))[..., 0]

    # W [p; q] = W_p p + W_q q: each vector passes once, not once for each pair it is in.

    def _of_users(self, user: Tensor) -> Tensor:
        found = F.linear(self.users(user), self._block(0), self.first.bias)
        if self.user_side is not None:
            found = found + F.linear(self.user_side(user), self._block(2))
        return found

    def _of_items(self, item: Tensor | None) -> Tensor:
        found = F.linear(rows_of(self.items, item), self._block(1))
        if self.item_side is not None:
            place = 2 if self.user_side is None else 3
            found = found + F.linear(self.item_side(item), self._block(place))
        return found

    def _block(self, number: int) -> Tensor:
        """What the first layer makes of one vector of its input, ``(layers[1], dim)``."""
        return self.first.weight[:, number * self.dim : (number + 1) * self.dim]

    def _tower(self, z: Tensor) -> Tensor:
        for layer in self.rest:
            z = layer(z).relu_()
        return z


# Neural collaborative filtering: GMF and MLP as NeuMF (He et al., WWW 2017).


class NeuMF(Recommender):
    """GMF and MLP side by side, with tables of their own: s = h^T [p^G * q^G; z] (Eq. 12).

    Args:
        n_users: number of users.
        n_items: number of items.
        dim: length of the GMF vectors.
        layers: widths of the MLP.
        key: for the start, as in `GMF` and `MLP`.
        sides: side information; each of the two parts has maps of its own.
        offset: whether a constant is added to all scores; it starts at 0.
    """

    def __init__(
        self,
        n_users: int,
        n_items: int,
        dim: int,
        layers: Sequence[int],
        key: Key,
        sides: Sides = NO_SIDES,
        offset: bool = False,
    ) -> None:
        super().__init__(n_users, n_items)
        self.dim = dim
        self.gmf = GMF(n_users, n_items, dim, key.fold("gmf"), sides)
        self.mlp = MLP(n_users, n_items, layers, key.fold("mlp"), sides)
        # The two parts share one output layer.
        del self.gmf.out, self.mlp.out
        with key.fold("out").torch_rng():
            self.out = output_layer(dim + layers[-1], offset)

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        parts = [self.gmf.features(user, item), self.mlp.features(user, item)]
        return self.out(torch.cat(parts, dim=-1))[..., 0]

    def score_cells(self, user: Tensor, row: Tensor, item: Tensor) -> Tensor:
        """Logits of cells in the rows of some users, see `Recommender.score_cells`."""
        of_gmf, of_mlp = self.out.weight[0, : self.dim], self.out.weight[:, self.dim :]
        z = self.mlp.cell_features(user, row, item)
        found = F.linear(z, of_mlp, self.out.bias)[:, 0]
        return found + self.gmf.weighted(user, row, item, of_gmf)

    def pretrain(self, gmf: GMF, mlp: MLP, alpha: float = 0.5) -> None:
        """Copy trained parts, with h = [alpha h_GMF; (1 - alpha) h_MLP] (Eq. 13).

        Args:
            gmf: a trained GMF of the same ``dim``, sides and offset.
            mlp: a trained MLP of the same ``layers``, sides and offset.
            alpha: weight of the GMF part, in [0, 1].

        Raises:
            RuntimeError: a shape differs.
        """
        for part, trained in ((self.gmf, gmf), (self.mlp, mlp)):
            named = trained.state_dict().items()
            part.load_state_dict({k: v for k, v in named if not k.startswith("out.")})
        of_gmf, of_mlp = gmf.out.state_dict(), mlp.out.state_dict()
        out = {"weight": torch.cat([alpha * of_gmf["weight"], (1 - alpha) * of_mlp["weight"]], 1)}
        if "bias" in of_gmf:
            out["bias"] = alpha * of_gmf["bias"] + (1 - alpha) * of_mlp["bias"]
        self.out.load_state_dict(out)
