"""FedAMP: the server keeps a model of every client and mixes those that are alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.cohort import Cohort, PerClient, Replies
from coterie.core.local_training.fit import Params
from coterie.core.methods.attention import flat, message_weights, squared_distances
from coterie.core.methods.fedamp_client import CloudModel, FedAMPClient
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.settings.proximal import FedAMPSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class ClientModels(ServerModel):
    """State of the server: the models of N clients, whose mean is ``weights``.

    Attributes:
        ids: ``(N,)`` ascending client ids.
        models: w_i, each ``(N, ...)``.
        silent: ``(N,)`` bool, clients that turned out to have no data; nobody hears their model.
    """

    ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    models: Params = field(default_factory=dict)
    silent: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))


class FedAMPServer(ModelServer[ClientModels]):
    """Server of FedAMP (Huang et al., AAAI 2021, Algorithm 1).

    There is no global model. Measured as such is the mean of the clients' models; all start at one
    draw, and clients that join later at the mean.
    """

    settings: FedAMPSettings

    def begin(self, key: Key) -> ClientModels:
        """Draw the model at which all clients start."""
        weights = self.initial(key)
        nobody = {name: w.new_empty(0, *w.shape) for name, w in weights.items()}
        return ClientModels(weights, models=nobody)

    def round(self, state: ClientModels, cohort: Cohort, key: Key) -> ClientModels:
        """One round: mix the models, send each client chosen its mixture, keep what comes back."""
        if not len(cohort):
            return state
        state = _joined(state, cohort.ids)
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        down = self.clouds(state, chosen.ids, cohort)
        replies = chosen.ask("update", PerClient(down))
        cohort.journal.scalar("fed/clients", replies.ids.numel())
        if replies.up is not None and replies.ids.numel():
            state = _kept(state, down, chosen.ids, replies)
            heard = replies.up.samples > 0
            if bool(heard.any()):
                cohort.journal.scalar("fed/loss", replies.up.loss[heard].mean())
        self.evaluate_if_due(state, cohort)
        return state

    def clouds(self, state: ClientModels, ids: Tensor, cohort: Cohort) -> CloudModel:
        """u_i = sum_j ξ_ij w_j of the clients ``ids``, ``(R,)``, stacked.

        Raises:
            UserError: local steps on the proximal term would diverge.
        """
        settings = self.settings
        squares = squared_distances(flat(state.models))
        weights, alpha = message_weights(squares, settings.sigma, settings.alpha, state.silent)
        strength = _strength(settings, alpha)
        mine = weights[torch.searchsorted(state.ids, ids)]
        cohort.journal.scalar("fed/alpha", alpha)
        cohort.journal.scalar("fed/own_weight", weights.diagonal().mean())
        mixed = {
            name: (mine @ models.flatten(1)).reshape(len(ids), *models.shape[1:])
            for name, models in state.models.items()
        }
        return CloudModel(mixed, squares.new_full((len(ids),), strength))


def check_for(settings: FedAMPSettings, n_clients: int) -> None:
    """Check that N clients can train near models that are all equal, as in the first round.

    There α_k = min(α, σ/N); it is not smaller in any later round.

    Raises:
        UserError: local steps on the proximal term would diverge.
    """
    _strength(settings, min(settings.alpha, settings.sigma / max(n_clients, 1)))


def _strength(settings: FedAMPSettings, alpha: float) -> float:
    """λ/α_k, at which steps on the proximal term must converge."""
    strength = settings.lam / alpha
    if settings.lr * strength >= 2:
        limit = "alpha" if alpha == settings.alpha else "sigma"
        raise UserError(
            f"'lr' times 'lam' / α_k is {settings.lr * strength:g} with α_k = {alpha:g}, "
            f"training diverges from 2 on: lower 'lr' or 'lam', or raise '{limit}'"
        )
    return strength


def _joined(state: ClientModels, ids: Tensor) -> ClientModels:
    """Give newcomers the mean model."""
    new = ids[torch.isin(ids, state.ids, invert=True)]
    if not new.numel():
        return state
    mean = {name: w.expand(len(new), *w.shape) for name, w in state.weights.items()}
    rows: dict[str, Any] = {
        "ids": torch.cat([state.ids, new]),
        "models": {name: torch.cat([old, mean[name]]) for name, old in state.models.items()},
        "silent": torch.cat([state.silent, torch.zeros_like(new, dtype=torch.bool)]),
    }
    return replace(state, **tree.take(rows, rows["ids"].argsort()))


def _kept(state: ClientModels, down: CloudModel, ids: Tensor, replies: Replies) -> ClientModels:
    """Replace the models of the clients that answered by u_i and their change; others stay."""
    places = torch.searchsorted(state.ids, replies.ids)
    sent = torch.searchsorted(ids, replies.ids)
    models = {
        name: old.index_copy(0, places, down.weights[name][sent] + replies.up.change[name])
        for name, old in state.models.items()
    }
    silent = state.silent.index_copy(0, places, replies.up.samples == 0)
    heard = models if bool(silent.all()) else tree.take(models, (~silent).nonzero().flatten())
    mean = {name: rows.mean(0) for name, rows in heard.items()}
    return ClientModels(mean, state.ids, models, silent)


__all__ = ["ClientModels", "FedAMPClient", "FedAMPServer", "FedAMPSettings", "check_for"]
