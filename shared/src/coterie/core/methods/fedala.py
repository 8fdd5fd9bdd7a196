"""FedALA: FedAvg whose clients learn how much of the server's model they take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.core.data.samples.samples import MiniBatches, Samples, in_memory
from coterie.core.data.samples.split_samples import SplitSamples, divide, share_counts
from coterie.core.local_training.fit import Fitted, fit
from coterie.core.local_training.gradients import Grads
from coterie.core.local_training.losses import Batch
from coterie.core.local_training.row_optimizer import Params, RowSGD, RowState
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import GlobalModel, ModelUpdate, OwnModel
from coterie.core.methods.kit.parts import last_layers, without
from coterie.core.methods.kit.training import changes, same_for_all
from coterie.core.methods.kit.uploads import changed, measured
from coterie.core.methods.settings.any_module import FedALASettings
from coterie.core.protocol.messages import Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_OLD, _STEP = "old.", "step."  # before the names of what the mixture lies between


@dataclass(frozen=True, kw_only=True)
class _BoxedSGD(RowSGD):
    """Gradient descent that is clipped to [0, 1] after each step."""

    def step(
        self, params: Params, grads: Grads, state: RowState, lr: float | Tensor, **more: object
    ) -> tuple[Params, RowState]:
        moved, state = super().step(params, grads, state, lr, **more)  # type: ignore[arg-type]
        return {name: value.clamp(0, 1) for name, value in moved.items()}, state


_OWN = {"personal", "rounds", "aggregation"}


@dataclass(frozen=True)
class FedALAModel(OwnModel):
    """What a client of FedALA keeps.

    Attributes:
        aggregation: W_i, weights in [0, 1] of the last layers' parameters, each ``(C, ...)``.
    """

    aggregation: Params


@dataclass(frozen=True)
class FedALAUpdate(ModelUpdate):
    """A `ModelUpdate` of a client that starts from what it keeps."""

    change: Params = changed("the model's parameters, w_k - w", _OWN)  # each (C, ...)
    loss: Tensor = measured("mean training loss", _OWN)  # (C,)


UPDATE = Step("update", GlobalModel, FedALAUpdate)


class FedALAClient(ModelClient[FedALAModel]):
    """Client of FedALA (Zhang et al., AAAI 2023, Algorithm 1) for any module.

    It starts from θ_i + (θ - θ_i) ⊙ W_i, where θ_i is its own model and θ the server's; the weights
    W_i are learned in the last p layers and 1 in the others. The paper sends the first model to all
    clients before training. Here a client that takes part for the first time starts from the
    server's model of that round; if all take part in every round, that is the same.
    """

    settings: FedALASettings

    @cached_property
    def learned(self) -> list[str]:
        """Names of the parameters in the last p layers."""
        return last_layers(list(self._form), self.settings.p)

    def newcomers(self, n_clients: int) -> FedALAModel:
        """Private state before the first round: no model, all weights 1."""
        models = self.zeros(n_clients)
        ones = {name: torch.ones_like(models[name]) for name in self.learned}
        return FedALAModel(models, torch.zeros(n_clients, dtype=torch.int64), ones)

    @UPDATE
    def update(
        self, down: GlobalModel, mine: FedALAModel, data: SplitSamples, key: Key
    ) -> tuple[FedALAUpdate, FedALAModel]:
        """Learn W_i, start from the mixture, run E epochs of SGD."""
        new = same_for_all(down.weights, len(data))
        ends = self.between(mine.personal, new)
        weights = self.learn(mine, ends, data.train, key.fold("aggregation"))
        start = tree.where_rows(mine.rounds == 0, new, self.mixed(weights, ends))
        fitted = self.local.train(start, self.local.batches(data.train, key))
        update = FedALAUpdate(changes(fitted.params, down.weights), data.lengths, fitted.loss)
        return update, FedALAModel(dict(fitted.params), mine.rounds + 1, weights)

    def between(self, old: Params, new: Params) -> Params:
        """What the mixture is made of: θ_i and θ - θ_i of the last layers, θ of the others.

        Args:
            old: θ_i, each ``(C, ...)``.
            new: θ, each ``(C, ...)``.
        """
        ends = without(new, self.learned)
        for name in self.learned:
            ends[_OLD + name], ends[_STEP + name] = old[name], new[name] - old[name]
        return ends

    def mixed(self, weights: Params, ends: Params) -> Params:
        """The model to start from, for one client or a stack: Eq. 4."""
        others = {n: value for n, value in ends.items() if not n.startswith((_OLD, _STEP))}
        return others | {n: ends[_OLD + n] + ends[_STEP + n] * weights[n] for n in self.learned}

    def learn(self, mine: FedALAModel, ends: Params, data: Samples, key: Key) -> Params:
        """Learn W_i by gradient steps on a share of the samples, clipped to [0, 1]: Eq. 5.

        In its first round a client learns nothing, in its second until the loss has settled, later
        in one pass.

        Args:
            mine: of C clients.
            ends: see `between`.
            data: of the clients.
            key: the clients' keys, ``(C,)``.
        """
        given, weights, turn = self.settings, mine.aggregation, mine.rounds
        some, _ = divide(in_memory(data), share_counts(data.lengths, given.s), key.fold("share"))
        rows = ((turn > 0) & (data.lengths > 0)).nonzero().flatten()
        window = min(given.window, given.max_passes + 1)  # the one pass more never comes
        recent = torch.full((len(data), window), torch.nan, dtype=torch.float64)
        for number in range(given.max_passes):
            if not rows.numel():
                break
            batches = MiniBatches(
                some.take(rows), 1, given.batch_size, key.fold("pass", number).take(rows)
            )
            found = self._one_pass(tree.take(weights, rows), tree.take(ends, rows), batches)
            weights = {n: w.index_copy(0, rows, found.params[n]) for n, w in weights.items()}
            recent[rows] = torch.cat([recent[rows, 1:], found.loss.double()[:, None]], 1)
            settled = recent[rows].std(1, correction=0) < given.threshold
            rows = rows[(turn[rows] == 1) & ~settled]
        return weights

    def _one_pass(self, weights: Params, ends: Params, batches: MiniBatches) -> Fitted:
        return fit(
            self._loss,
            weights,
            batches,
            _BoxedSGD(),
            self.settings.eta,
            batches.steps,
            slope=None if self.local.slope is None else self._slope,
            fixed=ends,
        )

    def _loss(self, given: Params, batch: Batch) -> Tensor:
        return self.local.loss(self.mixed(given, without(given, self.learned)), batch)

    def _slope(self, given: Params, batch: Batch) -> tuple[Params, Tensor]:
        """The module's own gradient, by the chain rule: dθ̂/dW = θ - θ_i."""
        assert self.local.slope is not None
        grads, loss = self.local.slope(self.mixed(given, without(given, self.learned)), batch)
        return {name: grads[name] * given[_STEP + name] for name in self.learned}, loss
