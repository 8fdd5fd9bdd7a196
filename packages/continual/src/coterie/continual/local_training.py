"""Local SGD of a chunk of users on a score that is linear in the item: exact, without item copies.

User u's local table after batches 0..b-1 is the shared table plus a sum of outer products,

    Q_u = O + s_b (Q - O) + sum over b' < b of  left_b' (x) v_b',

(O and s_b only under a pull towards an old table O, else s_b = 1), because the gradient of item i
is a residual times v_u. So neither scores nor gradients need a table per user: three matrix
products a batch, and the upload leaves as `FactoredRows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from coterie.continual.backbones import Backbone, Params
from coterie.continual.batches import Batches, Samples
from coterie.continual.rehearsal import Rehearsal, Replay
from coterie.core.tensors import tree
from coterie.core.tensors.rows import FactoredRows, Rows


@dataclass(frozen=True)
class Pull:
    """A pull of old item rows and private parameters to where the previous block left them.

    Attributes:
        table: ``(n_old, d)`` O.
        item_rate: share of the distance to O that a step takes away.
        towards: private parameters at the start of the block, each ``(C, ...)``.
        rates: the same share for each private parameter, ``(C,)``; 0 for new users.
    """

    table: Tensor
    item_rate: float
    towards: Params
    rates: Params


@dataclass(frozen=True)
class Trained:
    """What local training gives for C users.

    Attributes:
        rows: change of the item table by gradients.
        shrink: ``(C,)`` factor s on the distance to the old table; None without a pull.
        params: private parameters.
        loss: ``(C,)`` mean of the batch losses.
        replayed: ``(C,)`` mean number of replayed items in a batch.
    """

    rows: Rows
    shrink: Tensor | None
    params: Params
    loss: Tensor
    replayed: Tensor


class LocalTraining:
    """One local update of C users, batch by batch.

    Args:
        backbone: the scores.
        table: ``(n, d)`` shared item table Q.
        params: private parameters, each ``(C, ...)``.
        batches: of the C users.
        item_lr: learning rate of items.
        rehearsal: what is replayed beside each batch.
        pull: where to.
    """

    def __init__(
        self,
        backbone: Backbone,
        table: Tensor,
        params: Params,
        batches: Batches,
        item_lr: float,
        rehearsal: Rehearsal | None = None,
        pull: Pull | None = None,
    ) -> None:
        self.backbone, self.table, self.batches = backbone, table, batches
        self.item_lr, self.rehearsal, self.pull = item_lr, rehearsal, pull
        self.params = {name: value.clone() for name, value in params.items()}
        n_terms, (n_items, dim) = batches.owner.numel(), table.shape
        self.left = table.new_empty(n_terms, n_items)
        self.right = table.new_empty(n_terms, dim)
        n_users = batches.order.numel()
        self.loss = table.new_empty(n_terms)
        self.replayed = table.new_zeros(n_terms)
        self.steps = torch.zeros(n_users, dtype=torch.int64)

    def run(self) -> Trained:
        """Run all batches."""
        for number in range(len(self.batches)):
            self._step(number)
        rows = FactoredRows(self.batches.owner, self.left, self.right, self.steps.numel())
        shrink = None
        if self.pull is not None:
            shrink = (1.0 - self.pull.item_rate) ** self.steps.to(self.table.dtype)
        return Trained(rows, shrink, self.params, self._mean(self.loss), self._mean(self.replayed))

    def _mean(self, values: Tensor) -> Tensor:
        """Mean over each user's batches, ``(C,)``, of one number a term."""
        total = values.new_zeros(self.steps.numel()).index_add_(0, self.batches.owner, values)
        return total / self.steps.clamp_min(1)

    def _step(self, number: int) -> None:
        """One batch of every user who still has one (Algorithm 1, lines 5 to 14)."""
        term = self.batches.terms(number)
        users = self.batches.owner[term]
        params = {name: value[users] for name, value in self.params.items()}
        vector, offset = self.backbone.query(params)
        batch = self.batches.samples(number)
        scores = self._scores(number, vector, offset)
        logits = batch.of(scores)
        replay = None
        if self.rehearsal is not None:
            replay = self.rehearsal.beside(self.steps[users], users, scores)
        self._measure(term, batch, logits, replay)
        residual = self._residual(self.left[term], batch, logits)
        self._add_replay(residual, scores, replay)
        gradient = self._gradient(number, residual)
        new = self.backbone.descend(params, gradient, residual.sum(1))
        self._pull_params(users, params, new)
        if self.backbone.head_first:
            vector, offset = self.backbone.query(new)
            scores = self._scores(number, vector, offset)
            self._residual(residual, batch, batch.of(scores))
            self._add_replay(residual, scores, replay)
        self._pull_items(number, users.numel())
        residual *= -self.item_lr
        self.right[term] = vector
        for name, value in new.items():
            self.params[name][users] = value
        self.steps[users] += 1

    def _scores(self, number: int, vector: Tensor, offset: Tensor) -> Tensor:
        """Scores of all items under the users' own local tables, ``(A, n)``."""
        scores = torch.addmm(offset[:, None], vector, self.table.T)
        if self.pull is not None:
            n_old = self.pull.table.shape[0]
            scores[:, :n_old] -= self._lost(number) * (vector @ self._away().T)
        for term, count in self._earlier(number, vector.shape[0]):
            inner = (self.right[term] * vector[:count]).sum(1, keepdim=True)
            scores[:count].addcmul_(self.left[term], inner)
        return scores

    def _gradient(self, number: int, residual: Tensor) -> Tensor:
        """dL/dv, the residuals times the users' own local tables, ``(A, d)``."""
        gradient = residual @ self.table
        if self.pull is not None:
            n_old = self.pull.table.shape[0]
            gradient -= self._lost(number) * (residual[:, :n_old] @ self._away())
        for term, count in self._earlier(number, residual.shape[0]):
            weight = (self.left[term] * residual[:count]).sum(1, keepdim=True)
            gradient[:count].addcmul_(weight, self.right[term])
        return gradient

    def _earlier(self, number: int, active: int) -> Iterator[tuple[slice, int]]:
        """Terms of the active users in each earlier batch, and how many of them had that batch.

        These are the first ``count``. In a second epoch users are active again who had fewer
        batches in the first.
        """
        starts = self.batches.starts
        for start, end in pairwise(starts[: number + 1]):
            count = min(active, end - start)
            yield slice(start, start + count), count

    def _away(self) -> Tensor:
        """Q - O, ``(n_old, d)``."""
        assert self.pull is not None
        return self.table[: self.pull.table.shape[0]] - self.pull.table

    def _lost(self, number: int) -> Tensor:
        """Share of Q - O that the pull has taken away so far from each active user, ``(A, 1)``."""
        assert self.pull is not None
        done = self.steps[self.batches.owner[self.batches.terms(number)]]
        return 1.0 - (1.0 - self.pull.item_rate) ** done[:, None].to(self.table.dtype)

    def _residual(self, out: Tensor, batch: Samples, logits: Tensor) -> Tensor:
        """Write dL_Rec/ds of the mean over the batch into ``out``, ``(A, n)``."""
        error = torch.sigmoid(logits).sub_(batch.label)
        out.zero_().view(-1).scatter_add_(0, batch.cell, error)
        return out.div_(batch.size[:, None])

    def _add_replay(self, residual: Tensor, scores: Tensor, replay: Replay | None) -> None:
        """Add dL/ds of the replayed items."""
        if replay is None:
            return
        probability = torch.sigmoid(scores[replay.users].gather(1, replay.items))
        error = replay.weights * (probability - replay.targets)
        cell = replay.users[:, None] * residual.shape[1] + replay.items
        residual.view(-1).scatter_add_(0, cell.view(-1), error.view(-1))

    def _measure(self, term: slice, batch: Samples, logits: Tensor, replay: Replay | None) -> None:
        """Note the batch's mean BCE and the number of replayed items."""
        loss = binary_cross_entropy_with_logits(logits, batch.label, reduction="none")
        self.loss[term] = batch.sum_by_user(loss) / batch.size
        if replay is not None:
            self.replayed[term][replay.users] = (replay.weights != 0).sum(1).to(loss.dtype)

    def _pull_params(self, users: Tensor, before: Params, new: Params) -> None:
        """Pull the step's private parameters."""
        if self.pull is None:
            return
        for name, value in before.items():
            rate = tree.columns(self.pull.rates[name][users], value)
            new[name] = new[name] + rate * (self.pull.towards[name][users] - value)

    def _pull_items(self, number: int, active: int) -> None:
        """Pull what earlier batches changed of old item rows."""
        if self.pull is None:
            return
        for term, _ in self._earlier(number, active):
            self.left[term, : self.pull.table.shape[0]] *= 1.0 - self.pull.item_rate
