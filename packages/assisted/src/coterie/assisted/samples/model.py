"""What an organisation predicts by models of samples: F = F⁰ + η Σ_j w_j f_j."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from coterie.assisted.aae.network import Params
from coterie.assisted.aae.training import Trained
from coterie.assisted.aggregation import Choice, Fit, choose
from coterie.assisted.learner import Learner
from coterie.assisted.own_models import Model
from coterie.assisted.samples.autorec import AutoRec
from coterie.assisted.samples.gaussian_model import Gaussian
from coterie.assisted.samples.matrix import Asked, Samples
from coterie.assisted.samples.sums import AUTOREC, GAUSSIAN, Sums, named, params_of
from coterie.assisted.settings import AssistSettings
from coterie.core.data.interactions.cells import Cells
from coterie.core.tensors.keys import Key

_BY_VALIDATION = AssistSettings(eta=0.5, eta_rule="validation", weights="optimal")
"""η begins where a residual of squared loss, 2 (R - F), is added as it is; w is chosen there."""
FEWEST = 8
"""Validation cells from which on rate and weights are chosen: by fewer they may be anything."""
_ETA, _WEIGHTS = "eta", "weights"


class OfSamples(Protocol):
    """A model of samples, trained where all of them are, or by sums over those of each (`sums`).

    Attributes:
        unit: ``()`` of residuals.
    """

    unit: Tensor

    def begin(self, key: Key) -> Trained:
        """Give the model before the first round."""

    def train(self, now: Trained, key: Key) -> Trained:
        """Train for a round."""

    def sums(self, params: Params, key: Key) -> Sums:
        """Sum over the samples at hand what one step of training needs."""

    def outputs(self, params: Params, own: Cells, asked: Asked) -> Tensor:
        """Residuals to expect at some cells, ``(n,)``, of samples with others, ``(n_own, d)``."""


class BySamples(Model):
    """Models of samples, and what an organisation makes of them (Eq. 6 to 8, in one round).

    Weights w on the simplex, and then the rate η, are the best ones at the organisation's own
    validation cells; where it has few of these, weights are equal and the step is a whole one.

    Args:
        learner: of the organisation.
        samples: all residuals that it has.
        parts: models of these by name.
    """

    parts: Mapping[str, OfSamples]

    def __init__(self, learner: Learner, samples: Samples, parts: Mapping[str, OfSamples]) -> None:
        self._learner, self._samples, self.parts = learner, samples, parts
        self._held: Asked | None = None

    @property
    def unit(self) -> Tensor:
        """Unit of residuals, ``()``, of all parts."""
        return next(iter(self.parts.values())).unit

    def begin(self, key: Key) -> Trained:
        """Begin with F⁰."""
        return self.unrated({name: part.begin(key.fold(name)) for name, part in self.parts.items()})

    def unrated(self, found: Mapping[str, Trained]) -> Trained:
        """Leave F⁰ as it is, whatever models say."""
        return _joined(found, _alike(len(found), eta=0.0))

    def train(self, now: Trained, key: Key) -> Trained:
        """Train all for a round, then choose the rate; begin first where nothing has begun."""
        now = now if now.params else self.begin(key)
        found = {
            name: part.train(_part(now, name), key.fold(name)) for name, part in self.parts.items()
        }
        return self.rated(found)

    def rated(self, found: Mapping[str, Trained]) -> Trained:
        """Choose the rate of what models have learned."""
        cells = self._learner.data.valid
        if len(cells) < FEWEST:
            return _joined(found, _alike(len(found), _BY_VALIDATION.eta))
        outputs = self._outputs({name: one.params for name, one in found.items()}, cells)
        held = Fit(
            self._learner.objective,
            cells.values.double(),
            self._learner.base.at(cells).double(),
            outputs.double(),
        )
        return _joined(found, choose(held, _BY_VALIDATION, held))

    def predict(self, params: Params, cells: Cells) -> Tensor:
        """F at cells of the organisation's own matrix, ``(n,)``; F⁰ before anything has begun."""
        scores = self._learner.base.at(cells)
        if not params:
            return scores
        each = {name: params_of(params, name) for name in self.parts}
        choice = Choice(params[_ETA], params[_WEIGHTS])
        return scores + choice.step(self._outputs(each, cells)).to(scores)

    def _outputs(self, params: Mapping[str, Params], cells: Cells) -> Tensor:
        """Outputs f_j, ``(n, J)``."""
        asked, own = self._asked(cells), self._samples.own
        found = [part.outputs(params[name], own, asked) for name, part in self.parts.items()]
        return torch.stack(found, 1)

    def _asked(self, cells: Cells) -> Asked:
        """Name cells by samples; those to validate by are asked for in every round."""
        if cells is not self._learner.data.valid:
            return self._samples.asked(cells)
        if self._held is None:
            self._held = self._samples.asked(cells)
        return self._held


def models_of(
    learner: Learner, samples: Samples, unit: Tensor | None = None
) -> dict[str, OfSamples]:
    """Make the models of samples that the settings name.

    Args:
        learner: of an organisation.
        samples: what they are fitted to.
        unit: ``()`` of residuals; the root mean square of these samples' by default.
    """
    model = learner.settings.model
    hidden, code = model.widths(learner.data.domain.name)
    sizes, plan = (hidden, code, model.dropout, model.members), learner.plan
    found = dict[str, OfSamples]()
    if model.name != "gaussian":
        found[AUTOREC] = AutoRec(samples.every, plan, *sizes, unit)
    if model.name != "autorec":
        found[GAUSSIAN] = Gaussian(samples.every, model.noise, model.rank, plan.epochs, unit)
    return found


def own_samples(learner: Learner, order: Tensor | None = None) -> Samples:
    """Residuals of an organisation's own cells, all that one without peers has.

    Args:
        learner: of the organisation.
        order: ``(m,)`` of its rows as coordinates, where others have the same; None for its own.
    """
    cells = learner.data.train
    residuals = learner.objective.residual(cells.values, learner.base.at(cells))
    matrix = Cells(cells.columns, residuals, cells.n_columns)
    are_columns = learner.settings.samples_are_columns
    return Samples(matrix, 0, cells.n_columns, are_columns, order)


def _alike(count: int, eta: float) -> Choice:
    """A rate, and equal weights."""
    weights = torch.full((count,), 1.0 / count, dtype=torch.float64)
    return Choice(torch.tensor(eta, dtype=torch.float64), weights)


def _joined(parts: Mapping[str, Trained], choice: Choice) -> Trained:
    """What all parts have learned, and what is made of it."""
    params: Params = {}
    for name, one in parts.items():
        params |= named(name, one.params)
    params |= {_ETA: choice.eta, _WEIGHTS: choice.weights}
    every = list(parts.values())
    state = next((one.state for one in every if one.state is not None), None)
    return Trained(params, every[0].loss, every[0].epochs, state)


def _part(joined: Trained, name: str) -> Trained:
    """What one part has learned."""
    return Trained(params_of(joined.params, name), joined.loss, joined.epochs, joined.state)
