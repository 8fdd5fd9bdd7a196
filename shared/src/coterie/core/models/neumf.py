"""Neural collaborative filtering: GMF and MLP as NeuMF (He et al., WWW 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.models.gmf import GMF
from coterie.core.models.layers import output_layer
from coterie.core.models.mlp import MLP
from coterie.core.models.recommender import Recommender
from coterie.core.models.side_information import NO_SIDES, Sides
from coterie.core.tensors.keys import Key


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
