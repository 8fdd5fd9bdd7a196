"""Models with a vector for every user and item: MF, MLP and NCF."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.assisted.aae.training import Trained
from coterie.assisted.apart.cell_batches import CellBatches
from coterie.assisted.apart.model import Model
from coterie.assisted.base import constant
from coterie.assisted.learner import Learner
from coterie.assisted.objective import Objective
from coterie.core.data.interactions.cells import Cells
from coterie.core.local_training.fit import fit
from coterie.core.local_training.losses import Batch, MethodOf
from coterie.core.local_training.row_optimizer import Params, RowAdam
from coterie.core.models.mf import MF
from coterie.core.models.mlp import MLP
from coterie.core.models.neumf import NeuMF
from coterie.core.models.recommender import Recommender
from coterie.core.models.side_information import NO_SIDES, Sides
from coterie.core.tensors import tree
from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key

_ROWS = 1024
"""Rows at a time, in prediction."""


class Factors(Model):
    """A recommender of the core, fitted to ratings by the organisation's loss.

    Rows are its users and columns its items, also where rows are items: MF and NCF are the same
    then but for names.

    Args:
        learner: of the organisation.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner, self._cells = learner, learner.data.train
        self._scored = _Scored(self._make(Key.from_seed(0)), learner.objective)

    def begin(self, key: Key) -> Trained:
        """Draw first parameters."""
        drawn = self._make(key.fold("start")).named_parameters()
        params = {f"model.{name}": value.detach() for name, value in drawn}
        state = RowAdam().begin(tree.as_stack(params))
        return Trained(params, self._cells.values.new_zeros(()), 0, state)

    def train(self, now: Trained, key: Key) -> Trained:
        """Train for some epochs more."""
        plan = self._learner.plan
        batches = CellBatches(self._cells, plan.batch_rows, key, now.epochs)
        fitted = fit(
            MethodOf(self._scored, "loss"),
            tree.as_stack(now.params),
            batches,
            RowAdam(weight_decay=plan.weight_decay),
            plan.lr,
            plan.epochs * batches.per_epoch,
            state=now.state,
            clip=plan.clip,
        )
        params = tree.as_one(fitted.params)
        return Trained(params, fitted.loss[0], now.epochs + plan.epochs, fitted.state)

    @torch.no_grad()
    def predict(self, params: Params, cells: Cells) -> Tensor:
        """Score cells, the rows a thousand at a time."""
        found = []
        for rows in torch.arange(cells.n_rows).split(_ROWS):
            part = cells.take(rows)
            places = rows, part.rows, part.columns.values
            found.append(functional_call(self._scored, params, places))
        return torch.cat(found) if found else cells.values.new_zeros(0)

    def _make(self, key: Key) -> Recommender:
        made = on_host(lambda: recommender(self._learner, key))
        return made.to(self._cells.values.dtype)


def recommender(learner: Learner, key: Key) -> Recommender:
    """Draw a recommender of the kind that the settings name, for an organisation's matrix."""
    settings, domain = learner.settings, learner.data.domain
    _, dim = settings.model.widths(domain.name)
    sides = Sides(domain.row_features, domain.column_features) if settings.data.side else NO_SIDES
    sizes, layers = (domain.train.n_rows, domain.train.n_columns), (2 * dim, dim // 2, dim // 4)
    match settings.model.name:
        case "mf":
            return MF(*sizes, dim, key, settings.model.biases, sides=sides, offset=_offset(learner))
        case "mlp":
            return MLP(*sizes, layers, key, sides, offset=True)
        case "ncf":
            return NeuMF(*sizes, dim, layers, key, sides, offset=True)
        case other:
            raise ValueError(f"'{other}' has no vectors of users and items")


def _offset(learner: Learner) -> float:
    """Where the m of MF starts: at its first estimate, in the public code at 0."""
    if learner.settings.model.biases == "broadcast":
        return 0.0
    return float(constant(learner.data.train, learner.objective))


class _Scored(nn.Module):
    """A recommender and the loss of its scores."""

    def __init__(self, model: Recommender, objective: Objective) -> None:
        super().__init__()
        self.model, self._objective = model, objective

    def forward(self, user: Tensor, row: Tensor, item: Tensor) -> Tensor:
        return self.model.score_cells(user, row, item)

    def loss(self, batch: Batch) -> Tensor:
        output = self(batch["user"], batch["row"], batch["item"])
        return self._objective.loss(batch["rating"], output).mean()
