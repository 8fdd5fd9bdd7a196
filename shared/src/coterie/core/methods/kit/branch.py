"""A personal branch beside what a client sends: mixed, chosen on validation, never uploaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.samples.samples import RepeatedBatches
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.evaluation import Evaluator
from coterie.core.methods.kit.training import LocalTraining
from coterie.core.methods.settings.fedavg import BranchOptions
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class Branched:
    """The branches of C clients.

    Attributes:
        params: v_i, each ``(C, ...)``.
        share: ``(C,)`` float64 a_i.
        lr: ``(C,)`` float64 learning rate of u_i; 0 where u_i is the model that is sent.
        loss: ``(C,)`` float64 of v_i on the samples held out; infinite where v_i has none.
        accuracy: ``(C,)`` float64 of the same; NaN where the module has none.
    """

    params: Params
    share: Tensor
    lr: Tensor
    loss: Tensor
    accuracy: Tensor


class Branch:
    """Make v_i = a_i u_i + (1 - a_i) W, with W as received and u_i as trained from it.

    u_i is the model that the client sends, or W after some epochs by the gradient of its own loss
    alone. No draw and no number of what is sent depends on it.

    Args:
        local: trains.
        evaluator: measures on the samples held out (`Evaluator.held_out`).
        options: what is tried.
    """

    def __init__(self, local: LocalTraining, evaluator: Evaluator, options: BranchOptions) -> None:
        self.local, self.evaluator, self.options = local, evaluator, options

    @property
    def rates(self) -> list[float]:
        """Learning rates of u_i that are tried; 0 is the model that is sent."""
        return [0.0, *(self.local.settings.lr * rate for rate in self.options.tuned)]

    def best(self, received: Params, sent: Params, data: SplitSamples, key: Key) -> Branched:
        """Choose (a_i, u_i) by the loss on each client's samples held out; W is among them.

        Of equal ones the first counts, so a client without samples has W.

        Args:
            received: W, each ``(C, ...)``.
            sent: models after training, each ``(C, ...)``.
            data: of C clients.
            key: the clients' keys, ``(C,)``.
        """
        best = self.measured(
            received, received, data, torch.zeros(len(data), dtype=torch.float64), 0.0
        )
        for lr, trained in self._sources(received, sent, data, key):
            for share in torch.linspace(0, 1, self.options.shares, dtype=torch.float64)[1:]:
                other = self.measured(received, trained, data, share.expand(len(data)), lr)
                best = tree.where_rows(other.loss < best.loss, other, best)
        return best

    def played(
        self,
        received: Params,
        sent: Params,
        data: SplitSamples,
        key: Key,
        share: Tensor,
        lr: Tensor,
    ) -> Branched:
        """Make the branches of given choices; the same draws as in `best`.

        Args:
            received: W, each ``(C, ...)``.
            sent: models after training, each ``(C, ...)``.
            data: of C clients.
            key: the clients' keys, ``(C,)``.
            share: ``(C,)`` a_i.
            lr: ``(C,)`` learning rates of u_i; 0 = the model that is sent.
        """
        own = lr > 0
        trained = sent
        if bool(own.any()):
            batches = self.local.batches(data.train, key.fold("branch"), self.options.epochs)
            found = self.local.train(received, batches, lr=lr).params
            trained = tree.where_rows(own, found, sent)
        return self.measured(received, trained, data, share, lr)

    def steps(self, data: SplitSamples) -> Tensor:
        """Local steps of each client's branch in a round, ``(C,)`` int64."""
        per_epoch = self.local.steps(data.train) // self.local.settings.epochs
        return per_epoch * self.options.epochs * len(self.options.tuned)

    def measured(
        self,
        received: Params,
        trained: Params,
        data: SplitSamples,
        share: Tensor,
        lr: float | Tensor,
    ) -> Branched:
        """Mix ``trained`` with ``received`` by ``share``, ``(C,)``, and measure; see `Branched`."""
        params = {
            name: w + tree.columns(share.to(w.dtype), w) * (trained[name] - w)
            for name, w in received.items()
        }
        quality = self.evaluator.held_out(params, data)
        loss = quality.loss.nan_to_num(torch.inf, torch.inf)
        accuracy = quality.values.get("accuracy", torch.full_like(loss, torch.nan))
        rates = torch.as_tensor(lr, dtype=share.dtype).expand(len(share))
        return Branched(params, share, rates, loss, accuracy)

    def _sources(
        self, received: Params, sent: Params, data: SplitSamples, key: Key
    ) -> list[tuple[float, Params]]:
        """Candidates of u_i with their learning rates; those of all rates are trained at once."""
        rates, n = self.rates[1:], len(data)
        if not rates or not n:
            return [(0.0, sent)]
        batches = self.local.batches(data.train, key.fold("branch"), self.options.epochs)
        who = torch.arange(n).repeat(len(rates))
        again = RepeatedBatches(batches, who, torch.full_like(who, self.options.epochs))
        start = tree.take(received, who)
        lr = torch.tensor(rates, dtype=torch.float64).repeat_interleave(n)
        found = self.local.train(start, again, lr=lr).params
        parts = [
            {name: value[n * k : n * (k + 1)] for name, value in found.items()}
            for k in range(len(rates))
        ]
        return [(0.0, sent), *zip(rates, parts, strict=True)]
