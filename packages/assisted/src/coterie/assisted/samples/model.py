"""What an organisation predicts by models of samples: F = F⁰ + η Σ_j w_j f_j."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from coterie.assisted.aae.network import Params
from coterie.assisted.aae.training import Trained
from coterie.assisted.aggregation import Choice, Fit, settle
from coterie.assisted.learner import Learner
from coterie.assisted.own_models import Model
from coterie.assisted.samples.autorec import AutoRec
from coterie.assisted.samples.gaussian_model import Gaussian
from coterie.assisted.samples.matrix import Asked, Samples
from coterie.assisted.samples.sums import AUTOREC, GAUSSIAN, Sums, named, params_of
from coterie.assisted.settings import Settings
from coterie.core.data.interactions.cells import Cells
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors.keys import Key

_WHOLE = 0.5
"""The η by which a residual of squared loss, 2 (R - F), is added as it is."""
Kinds = Mapping[str, Samples]
"""The same residuals as samples: what a sample is -> samples; one kind has no name."""
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

    Weights w on the simplex and the rate η are the best ones at the organisation's own validation
    cells; where it has few of these, weights are equal and the step is a whole one.

    Args:
        learner: of the organisation.
        samples: all residuals that it has, by what a sample is.
        parts: models of these, by name; see `models_of`.
    """

    parts: Mapping[str, OfSamples]

    def __init__(self, learner: Learner, samples: Kinds, parts: Mapping[str, OfSamples]) -> None:
        self._learner, self._samples, self.parts = learner, samples, parts
        self._held: dict[str, Asked] | None = None

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
            return _joined(found, _alike(len(found), _WHOLE))
        outputs = self._outputs({name: one.params for name, one in found.items()}, cells)
        held = Fit(
            self._learner.objective,
            cells.values.double(),
            self._learner.base.at(cells).double(),
            outputs.double(),
        )
        return _joined(found, settle(held, _WHOLE))

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
        asked, found = self._asked(cells), []
        for name, part in self.parts.items():
            kind = _kind(name)
            found.append(part.outputs(params[name], self._samples[kind].own, asked[kind]))
        return torch.stack(found, 1)

    def _asked(self, cells: Cells) -> dict[str, Asked]:
        """Name cells by samples; those to validate by are asked for in every round."""
        held = cells is self._learner.data.valid
        if held and self._held is not None:
            return self._held
        asked = {kind: samples.asked(cells) for kind, samples in self._samples.items()}
        if held:
            self._held = asked
        return asked


def models_of(learner: Learner, samples: Kinds, unit: Tensor | None = None) -> dict[str, OfSamples]:
    """Make the models of samples that the settings name, of every kind of samples.

    Args:
        learner: of an organisation.
        samples: what they are fitted to.
        unit: ``()`` of residuals; the root mean square of these samples' by default.
    """
    model, plan = learner.settings.model, learner.plan
    hidden, code = model.widths(learner.data.domain.name)
    sizes, found = (hidden, code, model.dropout, model.members), dict[str, OfSamples]()
    for kind, each in samples.items():
        if model.name != "gaussian":
            autorec = AutoRec(each.every, plan, *sizes, unit)
            found[_name(AUTOREC, kind)] = autorec
        if model.name != "autorec":
            gaussian = Gaussian(each.every, model.noise, model.rank, plan.epochs, unit)
            found[_name(GAUSSIAN, kind)] = gaussian
    return found


def own_samples(learner: Learner, order: Tensor | None = None) -> Kinds:
    """Residuals of an organisation's own cells, all that one without peers has.

    Args:
        learner: of the organisation.
        order: ``(m,)`` of its rows as coordinates, where others have the same; None for its own.
    """
    cells = learner.data.train
    residuals = learner.objective.residual(cells.values, learner.base.at(cells))
    matrix = Cells(cells.columns, residuals, cells.n_columns)
    return kinds(learner.settings, matrix, 0, cells.n_columns, order)


def kinds(
    settings: Settings, matrix: Cells, first: int, n_own: int, order: Tensor | None = None
) -> Kinds:
    """Take residuals at hand as samples, of each kind that the settings name.

    Args:
        settings: of the run.
        matrix: arguments as of `Samples`, for all kinds.
        first: the same.
        n_own: the same.
        order: the same.
    """
    found = settings.samples_are_columns
    return {
        kind if len(found) > 1 else "": Samples(matrix, first, n_own, are_columns, order)
        for kind, are_columns in found.items()
    }


def _name(model: str, kind: str) -> str:
    return f"{model}-{kind}" if kind else model


def _kind(name: str) -> str:
    return name.partition("-")[2]


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
    states = {name: one.state for name, one in parts.items() if one.state is not None}
    first = next(iter(parts.values()))
    return Trained(params, first.loss, first.epochs, _joined_state(states) if states else None)


def _part(joined: Trained, name: str) -> Trained:
    """What one part has learned."""
    params, state = params_of(joined.params, name), joined.state
    return Trained(params, joined.loss, joined.epochs, state and _state_of(state, name))


def _joined_state(states: Mapping[str, RowState]) -> RowState:
    """What the optimizers of all parts remember: the members of one part after those of another."""
    moments: dict[str, Params] = {}
    for name, one in states.items():
        for moment, of_params in one.moments.items():
            moments[moment] = moments.get(moment, {}) | named(name, of_params)
    return RowState(torch.cat([one.steps for one in states.values()]), moments)


def _state_of(joined: RowState, name: str) -> RowState | None:
    """What the optimizer of one part remembers; None where it has none."""
    moments = {moment: params_of(each, name) for moment, each in joined.moments.items()}
    first = next(iter(joined.moments.values()))
    names = list(dict.fromkeys(key.partition("/")[0] for key in first))
    if name not in names:
        return None
    steps = joined.steps.chunk(len(names))[names.index(name)]  # all have as many members
    return RowState(steps, moments)
