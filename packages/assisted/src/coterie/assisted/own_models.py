"""Models that an organisation trains on its own cells, and keeps for itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.assisted.aae.batches import RowShuffle
from coterie.assisted.aae.cells import Pattern
from coterie.assisted.aae.network import predict
from coterie.assisted.aae.training import Plan, Trained, train
from coterie.assisted.learner import Base, Learner, Start, base_model, constant
from coterie.assisted.objective import Objective
from coterie.core.data.interactions.cells import Cells
from coterie.core.local_training.fit import fit
from coterie.core.local_training.losses import Batch, MethodOf
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import Params, RowState
from coterie.core.models.mf import MF
from coterie.core.models.neumf import MLP, NeuMF
from coterie.core.models.recommender import NO_SIDES, Recommender, Sides
from coterie.core.tensors import tree
from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key


class Model(ABC):
    """A model of one organisation's cells; it keeps nothing that it learns."""

    @abstractmethod
    def begin(self, key: Key) -> Trained:
        """Give the model before the first round."""

    @abstractmethod
    def train(self, now: Trained, key: Key) -> Trained:
        """Train for a round, on the cells to train on."""

    @abstractmethod
    def predict(self, params: Params, cells: Cells) -> Tensor:
        """Give ratings, or logits of positive ones, ``(n,)``, at cells of the same matrix."""


# What needs no training: what columns say on average, and how rows and columns deviate.


class Untrained(Model):
    """A base model, by itself; there is one round.

    Args:
        learner: of the organisation.
        start: which one.
    """

    def __init__(self, learner: Learner, start: Start) -> None:
        self._learner, self._start = learner, start

    def begin(self, key: Key) -> Trained:
        """Fit it."""
        learner, cells = self._learner, self._learner.data.train
        base = base_model(cells, learner.objective, self._start, learner.settings.data.align)
        loss = learner.objective.loss(cells.values, base.at(cells)).mean()
        row = cells.values.new_zeros(cells.n_rows) if base.row is None else base.row
        params = {"column": base.column, "row": row}
        return Trained(params, loss, 0, RowState(torch.zeros(1, dtype=torch.int64), {}))

    def train(self, now: Trained, key: Key) -> Trained:
        """Leave it as it is."""
        return now

    def predict(self, params: Params, cells: Cells) -> Tensor:
        """Add up."""
        return Base(params["column"], params["row"]).at(cells)


# An ordinary autoencoder: from an organisation's own columns to the same (AutoRec's way).


class Autoencoder(Model):
    """What the Assisted AutoEncoder is without assistance (section 3.2; Sedhain et al., 2015).

    It fits ratings themselves by the organisation's loss, one model over all rounds.

    Args:
        learner: of the organisation.
    """

    def __init__(self, learner: Learner) -> None:
        cells = learner.data.train
        self._plan, self._loss = learner.plan, learner.objective
        self._network, self._inputs = learner.network(cells.n_columns), learner.inputs(0)
        self._pattern, self._values = Pattern(cells.columns, cells.n_columns), cells.values

    def begin(self, key: Key) -> Trained:
        """Draw first parameters."""
        return self._train(replace(self._plan, epochs=0), key, None)

    def train(self, now: Trained, key: Key) -> Trained:
        """Train for some epochs more."""
        return self._train(self._plan, key, now)

    def predict(self, params: Params, cells: Cells) -> Tensor:
        """Decode the training cells of each row."""
        return predict(self._network, params, self._inputs, cells.columns)

    def _train(self, plan: Plan, key: Key, start: Trained | None) -> Trained:
        fitted = self._network, self._inputs, self._pattern, self._values
        return train(*fitted, plan, key, loss=self._loss, start=start)


# Mini-batches of rows with all their cells, as `coterie.core.local_training.fit` takes them.


class CellBatches:
    """Batches of one client: some rows with all their cells.

    A batch has ``user`` ``(1, B)`` and, of each cell, ``(1, n)``, ``row`` (the position of its row
    in ``user``), ``item`` and ``rating``.

    Args:
        cells: to train on; rows are called users, columns items.
        size: rows a batch.
        key: of the shuffles.
        epochs: those that are done already; batches are counted on from there.
    """

    def __init__(self, cells: Cells, size: int, key: Key, epochs: int = 0) -> None:
        self._cells, self._rows = cells, RowShuffle(cells.columns.lengths, size, key)
        self.per_epoch = self._rows.per_epoch
        self._first = epochs * self.per_epoch

    def __call__(self, number: int, rows: Tensor) -> Batch:
        """Batch ``number`` from 0."""
        user = self._rows(self._first + number)
        cells = self._cells.take(user)
        found = {"row": cells.rows, "item": cells.columns.values, "rating": cells.values}
        return {name: value[None] for name, value in {"user": user, **found}.items()}


# Models with a vector for every user and item: MF, MLP and NCF.

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
