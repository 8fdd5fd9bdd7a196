"""Neural collaborative filtering: GMF, MLP and NeuMF (He et al., WWW 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.models.recommender import Recommender, table
from coterie.core.tensors.keys import Key


class GMF(Recommender):
    """Generalised matrix factorisation: s = h^T (p_u * q_i) (He et al., Eq. 9).

    Args:
        n_users: number of users.
        n_items: number of items.
        dim: length of the vectors.
        key: for the start: tables N(0, 0.01²), h uniform as in LeCun et al. (1998).
    """

    def __init__(self, n_users: int, n_items: int, dim: int, key: Key) -> None:
        super().__init__(n_users, n_items)
        with key.torch_rng():
            self.users = table(n_users, dim)
            self.items = table(n_items, dim)
            self.out = _output(dim)

    def features(self, user: Tensor, item: Tensor) -> Tensor:
        """Elementwise product p_u * q_i, ``(..., dim)``; ``user`` and ``item`` broadcast."""
        return self.users(user) * self.items(item)

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        return self.out(self.features(user, item))[..., 0]


class MLP(Recommender):
    """Tower of ReLU layers on [p_u; q_i], then h^T z (He et al., Eq. 10).

    Args:
        n_users: number of users.
        n_items: number of items.
        layers: widths from the input on: ``layers[0]`` is that of [p_u; q_i], hence twice the
            length of a vector; each further one is a layer.
        key: for the start: tables N(0, 0.01²), weights as in Glorot and Bengio (2010), biases 0.

    Raises:
        ValueError: ``layers`` has fewer than two widths, or the first is odd.
    """

    def __init__(self, n_users: int, n_items: int, layers: Sequence[int], key: Key) -> None:
        super().__init__(n_users, n_items)
        if len(layers) < 2 or layers[0] % 2:
            raise ValueError(f"layers needs two widths or more, the first even, got {layers}")
        self.dim = layers[0] // 2
        with key.torch_rng():
            self.users = table(n_users, self.dim)
            self.items = table(n_items, self.dim)
            self.first = _hidden(layers[0], layers[1])
            self.rest = nn.ModuleList(map(_hidden, layers[1:-1], layers[2:]))
            self.out = _output(layers[-1])

    def features(self, user: Tensor, item: Tensor) -> Tensor:
        """Last layer of the tower, ``(..., layers[-1])``; ``user`` and ``item`` broadcast."""
        # W [p; q] = W_p p + W_q q: each vector passes once, not once for each pair it is in.
        weight = self.first.weight
        of_user = F.linear(self.users(user), weight[:, : self.dim], self.first.bias)
        z = (of_user + F.linear(self.items(item), weight[:, self.dim :])).relu()
        for layer in self.rest:
            z = layer(z).relu()
        return z

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        return self.out(self.features(user, item))[..., 0]


class NeuMF(Recommender):
    """GMF and MLP side by side, with tables of their own: s = h^T [p^G * q^G; z] (Eq. 12).

    Args:
        n_users: number of users.
        n_items: number of items.
        dim: length of the GMF vectors.
        layers: widths of the MLP.
        key: for the start, as in `GMF` and `MLP`.
    """

    def __init__(
        self, n_users: int, n_items: int, dim: int, layers: Sequence[int], key: Key
    ) -> None:
        super().__init__(n_users, n_items)
        self.gmf = GMF(n_users, n_items, dim, key.fold("gmf"))
        self.mlp = MLP(n_users, n_items, layers, key.fold("mlp"))
        # The two parts share one output layer.
        del self.gmf.out, self.mlp.out
        with key.fold("out").torch_rng():
            self.out = _output(dim + layers[-1])

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Logits of pairs; ``user`` and ``item`` broadcast."""
        parts = [self.gmf.features(user, item), self.mlp.features(user, item)]
        return self.out(torch.cat(parts, dim=-1))[..., 0]

    def pretrain(self, gmf: GMF, mlp: MLP, alpha: float = 0.5) -> None:
        """Copy trained parts, with h = [alpha h_GMF; (1 - alpha) h_MLP] (Eq. 13).

        Args:
            gmf: a trained GMF of the same ``dim``.
            mlp: a trained MLP of the same ``layers``.
            alpha: weight of the GMF part, in [0, 1].

        Raises:
            RuntimeError: a shape differs.
        """
        for part, trained in ((self.gmf, gmf), (self.mlp, mlp)):
            state = trained.state_dict()
            del state["out.weight"]
            part.load_state_dict(state)
        weight = torch.cat([alpha * gmf.out.weight, (1 - alpha) * mlp.out.weight], dim=1)
        self.out.load_state_dict({"weight": weight.detach()})


def _output(width: int) -> nn.Linear:
    layer = nn.Linear(width, 1, bias=False)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")
    return layer


def _hidden(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
