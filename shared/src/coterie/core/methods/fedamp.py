"""FedAMP: the server keeps a model of every client and mixes those that are alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import ModelUpdate, OwnModel
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.settings.any_module import FedAMPOptions, FedAMPSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Aligned, Down, Step, carries
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class CloudModel(Down):
    """A client's own model at the server; stacked over C clients."""

    weights: Params = carries("the client's mixture of all models, u_i")  # each (C, ...)
    pull: Tensor = carries("λ/α_k")  # (C,)


UPDATE = Step("update", CloudModel, ModelUpdate)
_TOGETHER = 1 << 14  # numbers of each model
_ROUNDING = 1e-12  # relative error of a sum; measured, 1e-14 of a million numbers


class FedAMPClient(ModelClient[OwnModel]):
    """Client of FedAMP (Huang et al., AAAI 2021, Algorithm 1) for any module."""

    admits_alone = True

    @UPDATE
    def update(
        self, down: CloudModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[ModelUpdate, OwnModel]:
        """Find w_i = argmin F_i(w) + λ/(2 α_k) ‖w - u_i‖² by SGD from u_i and send w_i - u_i.

        Without data w_i is u_i.
        """
        context = {"pull": down.pull, "cloud": down.weights}
        up, fitted = self.train_from(dict(down.weights), mine, data, key, _near, context)
        return up, self.after(mine, fitted)


def _near(params: Params, context: Any) -> Params:
    strength, cloud = context["pull"], context["cloud"]
    return {
        name: tree.columns(strength.to(near.dtype), near) * (params[name] - near)
        for name, near in cloud.items()
    }


def flat(models: Params) -> Tensor:
    """Put the parameters of N models end to end, ``(N, d)``."""
    return torch.cat([value.flatten(1) for value in models.values()], 1)


def squared_distances(vectors: Tensor) -> Tensor:
    """‖v_i - v_j‖² of vectors ``(N, d)``, ``(N, N)``; 0 on the diagonal.

    Sums are of float64, and what is left of them by rounding is 0: equal vectors are no distance
    apart, however many numbers they have.
    """
    count = len(vectors)
    products = vectors.new_zeros(count, count, dtype=torch.float64)
    for part in vectors.split(_TOGETHER, dim=1):
        # Distances from a common centre are small where the models are alike: less is cancelled.
        centred = part.double()
        centred = centred - centred.mean(0)
        products += centred @ centred.T
    norms = products.diagonal()
    largest = norms[:, None] + norms
    squares = largest - 2 * products
    return squares.where(squares > _ROUNDING * largest, 0.0).fill_diagonal_(0).to(vectors.dtype)


def median_distance(squares: Tensor) -> float:
    """Median of the squared distances ``(N, N)`` between two different models; 0 for a single one.

    Of an even number of them it is the lower one of the two in the middle.

    Example:
        >>> median_distance(torch.tensor([[0.0, 4.0], [4.0, 0.0]]))
        4.0
    """
    pairs = squares[torch.triu_indices(len(squares), len(squares), 1).unbind()]
    return float(pairs.median()) if pairs.numel() else 0.0


def message_weights(
    squares: Tensor, sigma: float, alpha: float, silent: Tensor
) -> tuple[Tensor, float]:
    """Weights ξ of the messages between N clients (FedAMP, Eq. 5), and the α_k that they use.

    ξ_ij = α_k A'(‖w_i - w_j‖²) for j ≠ i with A'(x) = exp(-x/σ)/σ, and ξ_ii is the rest to 1.

    Args:
        squares: ``(N, N)`` squared distances of the models.
        sigma: σ.
        alpha: largest α_k; a smaller one is taken where otherwise some ξ_ii, which the paper wants
            to be no less than 0, would fall below α_k A'(0), the weight of an equal model.
        silent: ``(N,)`` bool, clients whose models nobody else hears.

    Example:
        >>> squares = torch.zeros(3, 3)
        >>> weights, alpha = message_weights(squares, 1.0, 0.25, torch.zeros(3).bool())
        >>> weights[0].tolist(), alpha
        ([0.5, 0.25, 0.25], 0.25)
    """
    slope = torch.exp(-squares / sigma) / sigma
    slope = slope.masked_fill(silent, 0.0).fill_diagonal_(0.0)
    others = slope.sum(1)
    used = min(alpha, 1 / (float(others.max()) + 1 / sigma))
    weights = used * slope
    return weights.diagonal_scatter(1 - used * others), used


@dataclass(frozen=True)
class Messages:
    """What N clients hear from one another in a round.

    Attributes:
        weights: ``(N, N)`` ξ, rows sum to 1; the mixtures u are these times the models.
        alpha: α_k that they use.
        sigma: σ in the unit of squared distances.
        distance: median of the squared distances of two models.
        pull: λ/α_k, by which a client's model is drawn to its mixture.
    """

    weights: Tensor
    alpha: float
    sigma: float
    distance: float
    pull: float


def messages(vectors: Tensor, options: FedAMPOptions, silent: Tensor) -> Messages:
    """Weigh the models of N clients for one another by their distances (FedAMP, Eq. 5).

    Args:
        vectors: ``(N, d)`` the models w_i, end to end.
        options: of the method; relative ones are in units of the median distance. Models that are
            all equal, as before the first round, have no unit and need none.
        silent: ``(N,)`` bool, clients whose models nobody else hears.

    Example:
        >>> options = FedAMPOptions(sigma=1.0, alpha=0.25)
        >>> found = messages(torch.zeros(3, 2), options, torch.zeros(3).bool())
        >>> found.weights[0].tolist(), found.pull
        ([0.5, 0.25, 0.25], 4.0)
    """
    squares = squared_distances(vectors)
    median = median_distance(squares)
    unit = median if options.relative and median else 1.0
    weights, alpha = message_weights(squares / unit, options.sigma, options.alpha, silent)
    return Messages(weights, alpha, options.sigma * unit, median, options.lam / alpha)


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
        parts = self.parted(self.initial(key))
        nobody = {name: w.new_empty(0, *w.shape) for name, w in parts["weights"].items()}
        return ClientModels(parts["weights"], own=parts["own"], models=nobody)

    def round(self, state: ClientModels, cohort: Cohort, key: Key) -> ClientModels:
        """One round: mix the models, send each client chosen its mixture, keep what comes back."""
        if not len(cohort):
            return state
        state = _joined(state, cohort.ids)
        chosen = cohort.sample(self.settings.fraction, key.fold("sample"))
        down = self.clouds(state, chosen.ids, cohort)
        replies = chosen.ask(UPDATE, Aligned(chosen.ids, down))
        cohort.journal.scalar("fed/clients", replies.ids.numel())
        if (up := replies.up) is not None:
            state = _kept(state, down, chosen.ids, replies.ids, up)
            heard = up.samples > 0
            if bool(heard.any()):
                cohort.journal.scalar("fed/loss", up.loss[heard].mean())
        self.evaluate_if_due(state, cohort)
        return state

    def clouds(self, state: ClientModels, ids: Tensor, cohort: Cohort) -> CloudModel:
        """u_i = sum_j ξ_ij w_j of the clients ``ids``, ``(R,)``, stacked.

        Raises:
            UserError: local steps on the proximal term would diverge.
        """
        found = messages(flat(state.models), self.settings, state.silent)
        _check_pull(self.settings, found.alpha)
        mine = found.weights[torch.searchsorted(state.ids, ids)]
        for name in ("alpha", "sigma", "distance"):
            cohort.journal.scalar(f"fed/{name}", getattr(found, name))
        cohort.journal.scalar("fed/own_weight", found.weights.diagonal().mean())
        mixed = {
            name: (mine @ models.flatten(1)).reshape(len(ids), *models.shape[1:])
            for name, models in state.models.items()
        }
        return CloudModel(mixed, mine.new_full((len(ids),), found.pull))


def check_for(settings: FedAMPSettings, lengths: Tensor) -> None:
    """Check that N clients can train near models that are all equal, as in the first round.

    There α_k = min(α, σ/N); it is not smaller in any later round.

    Args:
        settings: of the method.
        lengths: ``(N,)`` numbers of training samples.

    Raises:
        UserError: local steps on the proximal term would diverge.
    """
    _check_pull(settings, min(settings.alpha, settings.sigma / max(len(lengths), 1)))


def _check_pull(settings: FedAMPSettings, alpha: float) -> None:
    """Refuse a pull λ/α_k on which steps of gradient descent would diverge."""
    strength = settings.lam / alpha
    if settings.optimizer == "sgd" and settings.lr * strength >= 2:
        limit = "alpha" if alpha == settings.alpha else "sigma"
        raise UserError(
            f"'lr' times 'lam' / α_k is {settings.lr * strength:g} with α_k = {alpha:g}, "
            f"training diverges from 2 on: lower 'lr' or 'lam', or raise '{limit}'"
        )


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


def _kept(
    state: ClientModels, down: CloudModel, ids: Tensor, answered: Tensor, up: ModelUpdate
) -> ClientModels:
    """Replace the models of the clients that answered by u_i and their change; others stay."""
    places = torch.searchsorted(state.ids, answered)
    sent = torch.searchsorted(ids, answered)
    models = {
        name: old.index_copy(0, places, down.weights[name][sent] + up.change[name])
        for name, old in state.models.items()
    }
    silent = state.silent.index_copy(0, places, up.samples == 0)
    heard = models if bool(silent.all()) else tree.take(models, (~silent).nonzero().flatten())
    mean = {name: rows.mean(0) for name, rows in heard.items()}
    return replace(state, weights=mean, models=models, silent=silent)
