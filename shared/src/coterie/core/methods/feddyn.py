"""FedDyn: FedAvg with a regularizer by which the clients' optima become the server's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import GlobalModel, ModelUpdate, OwnModel
from coterie.core.methods.kit.model_server import ModelServer
from coterie.core.methods.kit.sizes import SizedModel, Sizes, TellsSize, anew, ask_sizes
from coterie.core.methods.kit.training import changes, same_for_all
from coterie.core.methods.kit.uploads import Weighted, changed, mean_added, measured, noted
from coterie.core.methods.settings.any_module import FedDynSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Step, carries
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_OWN = {"gradient", "block"}  # the private fields that training depends on


@dataclass(frozen=True)
class DynamicModel(GlobalModel):
    """The server's model W."""

    mean_samples: float = carries("mean number of samples of the clients that have any")
    block: int = carries("number of the block, with which the gradients begin")


@dataclass(frozen=True)
class DynamicUpdate(ModelUpdate):
    """What a client's local training changed; stacked over C clients."""

    change: Params = changed("the model's parameters, w_i - W", _OWN)  # each (C, ...)
    loss: Tensor = measured("mean training loss", _OWN)  # (C,)


@dataclass(frozen=True)
class OwnGradient(OwnModel):
    """What a client keeps.

    Attributes:
        gradient: h_i, the gradient of its loss at its last model by the rule of FedDyn, each
            ``(C, ...)``.
        block: ``(C,)`` int64, number of the block that it is of.
    """

    gradient: Params
    block: Tensor


UPDATE = Step("update", DynamicModel, DynamicUpdate)


class FedDynClient(TellsSize, ModelClient[OwnGradient]):
    """Client of FedDyn (Acar et al., ICLR 2021, Algorithm 1) for any module."""

    settings: FedDynSettings
    admits_branch = True

    def newcomers(self, n_clients: int) -> OwnGradient:
        """Start with h_i = 0."""
        own = super().newcomers(n_clients)
        return OwnGradient(
            own.personal, own.rounds, self.zeros(n_clients), torch.zeros_like(own.rounds)
        )

    @UPDATE
    def update(
        self, down: DynamicModel, mine: OwnGradient, data: SplitSamples, key: Key
    ) -> tuple[DynamicUpdate, OwnGradient]:
        """Minimise f_i(w) - <h_i, w> + α_i/2 ‖w - W‖² by SGD, then h_i <- h_i - α_i (w_i - W)."""
        start = same_for_all(down.weights, len(data))
        batches = self.local.batches(data.train, key)
        alpha = self._alpha(data.lengths, down)
        before = anew(mine.gradient, mine.block, down.block)
        context = {"alpha": alpha, "centre": start, "gradient": before}
        fitted = self.local.train(start, batches, pull=_regularized, context=context)
        change = changes(fitted.params, down.weights)
        gradient = {name: h - alpha[name] * change[name] for name, h in before.items()}
        now = torch.full_like(mine.block, down.block)
        personal = self.own_model(start, fitted.params, data, key)
        kept = OwnGradient(personal, mine.rounds + 1, gradient, now)
        return DynamicUpdate(change, data.lengths, fitted.loss), kept

    def _alpha(self, lengths: Tensor, down: DynamicModel) -> Params:
        """α_i, for each parameter in a shape ``(C, 1, ...)`` that broadcasts."""
        weight = torch.ones(len(lengths), dtype=torch.float64)
        if self.settings.weighting == "samples":
            weight = lengths.clamp(min=1).double() / down.mean_samples
        alpha = self.settings.alpha / weight
        return {
            name: tree.columns(alpha.to(value.dtype), value[None])
            for name, value in down.weights.items()
        }


def _regularized(params: Params, context: Any) -> Params:
    alpha, centre, gradient = (context[part] for part in ("alpha", "centre", "gradient"))
    return {
        name: alpha[name] * (value - centre[name]) - gradient[name]
        for name, value in params.items()
    }


@dataclass(frozen=True, kw_only=True)
class FedDynModel(SizedModel):
    """State of the server: W, from which the clients start, is ``weights``.

    Attributes:
        h: -α times the mean over all clients of what they moved in all rounds.
        mean: mean of the clients' models of the last round.
    """

    h: Params = field(default_factory=dict)
    mean: Params = field(default_factory=dict)


class FedDynServer(ModelServer[FedDynModel]):
    """Server of FedDyn (Acar et al., ICLR 2021, Algorithm 1).

    Measured is the mean of the clients' models, of which the paper's theorem speaks and which its
    authors report; W lies off it by h/α.
    """

    settings: FedDynSettings
    averages = sums = True

    def begin(self, key: Key) -> FedDynModel:
        """Draw W, and start with h = 0."""
        weights = self.initial(key)
        return FedDynModel(
            weights, h=tree.map_tensors(torch.zeros_like, weights), mean=tree.clone(weights)
        )

    def model(self, state: FedDynModel) -> Params:
        """The mean of the clients' models."""
        return state.mean

    def start_block(self, state: FedDynModel, block: int, cohort: Cohort, key: Key) -> FedDynModel:
        """Enrol newcomers and set h to 0, so that W is the mean of the clients' models."""
        cohort.enrol()
        h = tree.map_tensors(torch.zeros_like, state.h)
        return replace(state, weights=tree.clone(state.mean), h=h, sizes=Sizes(), block=block)

    def round(self, state: FedDynModel, cohort: Cohort, key: Key) -> FedDynModel:
        """One round: h <- h - α/m sum (w_i - W), then W <- mean w_i - h/α.

        The sum and the mean are over the clients chosen, m counts all; those with data count alike,
        those without in neither.
        """
        if state.sizes.asked != len(cohort):
            state = _resized(state, ask_sizes(cohort))
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        mean_samples = state.sizes.samples / max(state.sizes.clients, 1)
        down = DynamicModel(state.weights, mean_samples, state.block)
        replies = chosen.ask(UPDATE, down, reduce=Weighted("equal"))
        if (total := noted(replies, cohort.journal)) is not None:
            alpha, m = self.settings.alpha, state.sizes.clients
            h = {name: h - alpha / m * total.sums.change[name] for name, h in state.h.items()}
            mean = mean_added(state.weights, total)
            weights = {name: w - h[name] / alpha for name, w in mean.items()}
            state = replace(state, weights=weights, h=h, mean=mean)
        self.evaluate_if_due(state, cohort)
        return state


def _resized(state: FedDynModel, sizes: Sizes) -> FedDynModel:
    """Keep h a mean over all clients when some join, who have not moved."""
    before, now = state.sizes.clients, sizes.clients
    share = before / now if before and now else 1.0
    return replace(state, h={name: share * h for name, h in state.h.items()}, sizes=sizes)


def check_for(settings: FedDynSettings, lengths: Tensor) -> None:
    """Check a regularizer by the clients' sizes, which a client with few samples feels most.

    Args:
        settings: of the method.
        lengths: ``(C,)`` numbers of training samples.

    Raises:
        UserError: local steps on the regularizer of the smallest client would diverge.
    """
    some = lengths[lengths > 0]
    if settings.weighting == "equal" or not some.numel():
        return
    share = float(some.min() / some.double().mean())
    if settings.lr * settings.alpha / share >= 2:
        raise UserError(
            f"'lr' times 'alpha' is {settings.lr * settings.alpha / share:g} for the client with "
            f"{int(some.min())} samples, {share:.2g} of the mean, and training diverges from 2 "
            "on: lower one, or set 'weighting' to equal"
        )
