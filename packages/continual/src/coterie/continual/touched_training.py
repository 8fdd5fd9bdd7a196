"""Local SGD of a chunk of users on the items they touch alone, by compiled loops.

The algorithm is that of `coterie.continual.local_training`: a user's local table is the shared one
plus a sum of outer products. There scores and residuals of all items stand in tables ``(users,
items)``. Here only samples, and what is practised beside them, have scores that are kept, so memory
does not grow with the catalogue; nor does time, but where a draw depends on the ranking of all
items. Both give the same numbers up to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.continual.backbones import Backbone, Params
from coterie.continual.batches import Draws
from coterie.continual.local_training import Trained
from coterie.continual.rehearsal import Rehearsal
from coterie.core.tensors.keys import Key
from coterie.core.tensors.sparse_rows import SparseFactoredRows

TOUCHED_BYTES = 48
"""What training holds of a sample at once, from above: draws, an item, a residual, a change.

Of an item that may be practised beside a batch as well.
"""


class TouchedTraining:
    """One local update of C users by SGD, batch by batch, without a pull.

    Args:
        backbone: the scores.
        table: ``(n, d)`` shared item table Q.
        params: private parameters, each ``(C, ...)``.
        draws: samples of the C users.
        item_lr: learning rate of items.
        rehearsal: what is practised beside each batch.
    """

    def __init__(
        self,
        backbone: Backbone,
        table: Tensor,
        params: Params,
        draws: Draws,
        item_lr: float,
        rehearsal: Rehearsal | None = None,
    ) -> None:
        self.backbone, self.draws, self.item_lr = backbone, draws, item_lr
        self.table, self.rehearsal = table.contiguous(), rehearsal
        self.params = {name: value.contiguous().clone() for name, value in params.items()}

    def run(self) -> Trained:
        """Run all batches."""
        from coterie.continual.touched_kernels import train_users  # loads numba

        draws, table = self.draws, self.table
        n_terms, n_users = draws.owner.numel(), len(draws.plan.order)
        left = table.new_zeros(draws.packed.numel())
        right = table.new_empty(n_terms, table.shape[1])
        means = table.new_zeros(2, n_users)
        trained, rates = self._by_role()
        train_users(
            (np.array(draws.starts), *_arrays(draws.offsets, draws.ends, draws.packed)),
            *_arrays(draws.plan.order, table),
            _arrays(*trained),
            (self.item_lr, *rates),
            self.backbone.head_first,
            self._lists(),
            _arrays(left, right, means),
        )
        index = draws.packed.bitwise_right_shift_(1)  # in place: nobody needs the labels any more
        changes = (draws.owner, index, left, draws.offsets, right)
        rows = SparseFactoredRows(*changes, n_users, len(table))
        return Trained(rows, None, self.params, *means)

    def _lists(self) -> tuple[Any, ...]:
        """What is practised, as `train_users` takes it; nothing has no columns."""
        practised, n_users = self.rehearsal, len(self.draws.plan.order)
        if practised is None:
            nothing = self.table.new_empty(n_users, 0)
            practised = Rehearsal(nothing, nothing, nothing)
        keys, rule = torch.zeros(n_users, dtype=torch.int64), (False, False, 0.0)
        if (shrinking := practised.shrinking) is not None:
            keys, rule = shrinking.key.state, (shrinking.mean, True, float(shrinking.epsilon))
        lists = (practised.who, practised.items.int(), practised.targets, practised.weights)
        return (*_arrays(*[part.contiguous() for part in lists]), Key(keys).unsigned(), rule)

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
