"""Local SGD of a chunk of users on the items they touch alone, by compiled loops.

The algorithm is that of `coterie.continual.local_training`: a user's local table is the shared one
plus a sum of outer products. There scores and residuals of all items stand in tables
``(users, items)``, which suits what reads the scores of all items; here only samples have scores,
so neither time nor memory grows with the catalogue. Both give the same numbers up to rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.continual.backbones import Backbone, Params
from coterie.continual.batches import Draws
from coterie.continual.local_training import Trained
from coterie.core.tensors.sparse_rows import SparseFactoredRows

TOUCHED_BYTES = 48
"""What training holds of a sample at once, from above: draws, an item, a residual, a change."""


class TouchedTraining:
    """One local update of C users by plain SGD, batch by batch, without replay or pull.

    Args:
        backbone: the scores.
        table: ``(n, d)`` shared item table Q.
        params: private parameters, each ``(C, ...)``.
        draws: samples of the C users.
        item_lr: learning rate of items.
    """

    def __init__(
        self, backbone: Backbone, table: Tensor, params: Params, draws: Draws, item_lr: float
    ) -> None:
        self.backbone, self.draws, self.item_lr = backbone, draws, item_lr
        self.table = table.contiguous()
        self.params = {name: value.contiguous().clone() for name, value in params.items()}

    def run(self) -> Trained:
        """Run all batches."""
        from coterie.continual.touched_kernels import train_users  # loads numba

        draws, table = self.draws, self.table
        n_terms, n_users = draws.owner.numel(), draws.plan.order.numel()
        left, right = (
            table.new_empty(draws.packed.numel()),
            table.new_empty(n_terms, table.shape[1]),
        )
        losses = table.new_empty(n_terms)
        trained, rates = self._by_role()
        train_users(
            (np.array(draws.starts), *_arrays(draws.offsets, draws.packed)),
            *_arrays(draws.plan.order, table),
            _arrays(*trained),
            (self.item_lr, *rates),
            self.backbone.head_first,
            _arrays(left, right, losses),
        )
        index = draws.packed.bitwise_right_shift_(1)  # in place: nobody needs the labels any more
        changes = (draws.owner, index, left, draws.offsets, right)
        rows = SparseFactoredRows(*changes, n_users, len(table))
        total = table.new_zeros(n_users).index_add_(0, draws.owner, losses)
        loss = total / torch.bincount(draws.owner, minlength=n_users).clamp_min(1)
        return Trained(rows, None, self.params, loss, torch.zeros_like(loss))

    def _by_role(self) -> tuple[list[Tensor], list[float]]:
        """The private parameters v, c, a and b of a score ``<v, q> + c + <a, b>``, and their rates.

        What a backbone has not is 0, or empty.
        """
        params, backbone = self.params, self.backbone
        vector = params[backbone.vector]
        none = {"bias": vector.new_zeros(len(vector)), "pair": vector.new_empty(0, vector.shape[1])}
        names = (backbone.vector, backbone.bias, *(backbone.pair or ("", "")))
        missing = (none["bias"], none["bias"], none["pair"], none["pair"])
        found = [params.get(name, other) for name, other in zip(names, missing, strict=True)]
        return found, [backbone.rates.get(name, 0.0) for name in names]


def _arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(tensor.numpy() for tensor in tensors)
