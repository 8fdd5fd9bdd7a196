"""A tower of layers over the vectors of user and item (He et al., WWW 2017)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.models.layers import hidden_layer, output_layer
from coterie.core.models.recommender import Recommender, rows_of, table
from coterie.core.models.side_information import NO_SIDES, Sides, side_map
from coterie.core.tensors.keys import Key


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
