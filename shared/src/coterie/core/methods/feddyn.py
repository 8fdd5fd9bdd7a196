"""FedDyn: FedAvg with a regularizer by which the clients' optima become the server's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.local_training.fit import Params
from coterie.core.methods.drift_settings import FedDynSettings
from coterie.core.methods.fedavg import Weighted, mean_added
from coterie.core.methods.feddyn_client import DynamicModel, FedDynClient
from coterie.core.methods.sizes import SizedModel, SizedServer, Sizes
from coterie.core.protocol.folds import Fold
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True, kw_only=True)
class FedDynModel(SizedModel):
    """State of the server: W, from which the clients start, is ``weights``.

    Attributes:
        h: -α times the mean over all clients of what they moved in all rounds.
        mean: mean of the clients' models of the last round.
    """

    h: Params = field(default_factory=dict)
    mean: Params = field(default_factory=dict)


class FedDynServer(SizedServer[FedDynModel]):
    """Server of FedDyn (Acar et al., ICLR 2021, Algorithm 1).

    Measured is the mean of the clients' models, of which the paper's theorem speaks and which its
    authors report; W lies off it by h/α.
    """

    settings: FedDynSettings

    def begin(self, key: Key) -> FedDynModel:
        """Draw W, and start with h = 0."""
        weights = self.initial(key)
        return FedDynModel(
            weights, h=tree.map_tensors(torch.zeros_like, weights), mean=tree.clone(weights)
        )

    def model(self, state: FedDynModel) -> Params:
        """The mean of the clients' models."""
        return state.mean

    def down(self, state: FedDynModel) -> DynamicModel:
        """Send W, and the mean number of samples, which makes α_i."""
        sizes = state.sizes
        return DynamicModel(state.weights, sizes.samples / max(sizes.clients, 1), state.block)

    def cleared(self, state: FedDynModel) -> FedDynModel:
        """Set h to 0, so that W is the mean of the clients' models."""
        h = tree.map_tensors(torch.zeros_like, state.h)
        return replace(state, weights=tree.clone(state.mean), h=h)

    def fold(self) -> Fold:
        """Clients with data count alike."""
        return Weighted("equal")

    def aggregate(self, state: FedDynModel, total: dict[str, Any], n_clients: int) -> FedDynModel:
        """Set h <- h - α/m sum (w_i - W), then W <- mean w_i - h/α.

        The sum and the mean are over the clients chosen, m counts all; those without data count in
        neither.
        """
        alpha, m = self.settings.alpha, state.sizes.clients
        h = {name: h - alpha / m * total["change"][name] for name, h in state.h.items()}
        mean = mean_added(state.weights, total)
        weights = {name: w - h[name] / alpha for name, w in mean.items()}
        return replace(state, weights=weights, h=h, mean=mean)

    def resized(self, state: FedDynModel, sizes: Sizes) -> FedDynModel:
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


__all__ = ["FedDynClient", "FedDynModel", "FedDynServer", "FedDynSettings", "check_for"]
