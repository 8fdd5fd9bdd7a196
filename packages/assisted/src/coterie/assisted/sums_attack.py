"""What a server reads off the sums of single organisations, where they leave without masks.

A sum over one sample gives it away: its coordinates are where the sum is not 0, and its residuals
follow exactly. The readers here take every sum for that of one sample, so they show how fast this
ends as samples are added. They are simple: gradients of few samples can be inverted by who searches
for longer (Zhu, Liu, Han, NeurIPS 2019), so a low share is no proof that nothing leaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.assisted.aae.network import DECODER
from coterie.assisted.attack import SLOPES, nearest, rating_scale
from coterie.assisted.experiment import Experiment
from coterie.assisted.learner import Learner
from coterie.assisted.samples import gaussian
from coterie.assisted.samples.matrix import Samples, mean_square
from coterie.assisted.samples.model import models_of, own_samples
from coterie.assisted.samples.moving import movers
from coterie.assisted.samples.sums import AUTOREC, GAUSSIAN
from coterie.assisted.settings import Settings
from coterie.core.local_training.row_optimizer import Params
from coterie.core.tables.report import Report
from coterie.core.tensors.keys import Key

SIZES = 1, 2, 4, 16
"""Samples of an organisation that are added up, beside all that it has."""
_ZERO = 1e-9
NAME = "attack"


def read_autorec(params: Params, sums: Params) -> Tensor:
    """Read residuals off gradients of the squared error, as if they were of one sample.

    The gradient of the output's bias is 2 (f - r) where there is a residual r, else 0; that of its
    weight is the same times the hidden layer, which so is known, and with it the output f.

    Args:
        params: of all members, each ``(M, ...)``.
        sums: gradients of these.

    Returns:
        ``(d,)``, NaN where there is nothing.
    """
    weight, bias = f"{DECODER}.wide.weight", f"{DECODER}.wide.bias"
    found = []
    for number in range(len(params[bias])):
        slope = sums[bias][number].double()
        hidden = sums[weight][number].double().T @ slope / slope.square().sum().clamp_min(_ZERO)
        output = params[bias][number].double() + params[weight][number].double() @ hidden
        found.append(torch.where(slope.abs() > _ZERO, output - slope / 2, torch.nan))
    return torch.stack(found).nanmean(0)


def read_gaussian(params: Params, sums: Params, noise: float) -> Tensor:
    """Read residuals off A Q and the diagonal of A, as if these were of one sample.

    A is K⁻¹ - a a' where the diagonal is not 0, and a = K⁻¹ r. K is known, so a a' Q is, and so r
    but for its sign: which one it is, ratings on their scale tell.

    Args:
        params: of the distribution.
        sums: as `coterie.assisted.samples.gaussian.statistic` gives them.
        noise: variance of a residual.

    Returns:
        ``(d,)``, NaN where there is nothing, or the same with the other sign.
    """
    image, diagonal = (sums[name].double() for name in (gaussian.IMAGE, gaussian.DIAGONAL))
    at = (diagonal.abs() > _ZERO).nonzero().flatten()
    found = torch.full_like(diagonal, torch.nan)
    if not len(at):
        return found
    factor, own = gaussian.factor_of(params).double()[at], params[gaussian.OWN].double()[at]
    k = factor @ factor.T + torch.diag(own + noise)
    inverse = torch.linalg.inv(k)
    outer = inverse @ params[gaussian.DIRECTIONS].double()[at] - image[at]  # a (a' Q)
    direction = torch.linalg.svd(outer, full_matrices=False).U[:, 0]
    length = (inverse.diagonal() - diagonal[at]).clamp_min(0).sum().sqrt()
    found[at] = k @ direction * length
    return found


@dataclass(frozen=True)
class Exposed:
    """What was read off one sum, beside the truth.

    Attributes:
        samples: number of samples in it.
        right: ``(n,)`` bool, whether the rating of a cell is read exactly, F⁰ known.
        rounded: ``(n,)`` bool, whether F⁰ rounded is the rating.
        empty: share of the cells without a rating that are known to have none.
    """

    samples: int
    right: Tensor
    rounded: Tensor
    empty: float


def exposures(experiment: Experiment, sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Read sums over more and more samples, with the model before the first step.

    Args:
        experiment: a run of the method sums.
        sizes: samples of each organisation that are added up; all of them come last.

    Returns:
        A row for each model and size: shares of cells, means over organisations' cells, and at the
        end those of the sum over all organisations.
    """
    settings, each = experiment.settings, experiment.organisations.each
    scale, key = rating_scale(each), Key.from_seed(settings.seed).fold("attack")
    learners = [Learner(settings, one) for one in each if len(one.train)]
    samples = [own_samples(one, one.data.rows.argsort())[""] for one in learners]
    unit = mean_square(torch.cat([one.matrix.values for one in samples])).sqrt()
    rows = []
    for name, mover in movers(settings, each[0].train.n_rows).items():
        params, _ = mover.begin(key, unit.dtype)
        reader = _Reader(settings, name, params, unit, scale, key)
        for size in (*sizes, None):
            parts = [
                (learner, *_some(one, size, key))
                for learner, one in zip(learners, samples, strict=True)
            ]
            rows.append(_row(name, _said(size), [reader.read([part]) for part in parts]))
        rows.append(_row(name, "all of all organisations", [reader.read(parts)]))
    return rows


Part = tuple[Learner, Tensor, Samples]
"""An organisation, which of its columns are in a sum, and these as samples."""


@dataclass(frozen=True)
class _Reader:
    """Reads sums of one model."""

    settings: Settings
    name: str
    params: Params
    unit: Tensor
    scale: Tensor
    key: Key

    def read(self, parts: Sequence[Part]) -> Exposed:
        """Read the sum over all samples of some parts."""
        total: Params = {}
        for learner, _, samples in parts:
            model = models_of(learner, {"": samples}, self.unit)[self.name]
            for field, value in model.sums(self.params, self.key).values.items():
                total[field] = total[field] + value if field in total else value
        found = self.residuals(total) * self.unit
        cells = [self._cells(learner, index, found) for learner, index, _ in parts]
        truth, base, above = (torch.cat(each) for each in zip(*cells, strict=True))
        if self.name == GAUSSIAN and self._off(base - above) < self._off(base + above):
            above = -above
        right, rounded = (self._guess(each) == truth for each in (base + above, base))
        count = sum(one.every.n_rows for _, _, one in parts)
        unrated = len(found) * count - len(right)
        empty = int(found.isnan().sum()) * count / unrated if unrated else 0.0
        return Exposed(count, right, rounded, empty)

    def _cells(self, learner: Learner, index: Tensor, found: Tensor) -> tuple[Tensor, ...]:
        """Of each cell of some columns: the truth, F⁰, and what is read to be above it."""
        train, order = learner.data.train, learner.data.rows.argsort()
        here = torch.isin(train.columns.values, index)
        truth, base = train.values[here].double(), learner.base.at(train)[here].double()
        slope = SLOPES[0] if learner.objective.is_rating else 1.0
        above = found[order.argsort()[train.rows[here]]].nan_to_num() / slope
        if learner.objective.is_rating:
            return truth, base, above
        return truth, base.sigmoid(), above

    def _guess(self, values: Tensor) -> Tensor:
        return nearest(values, self.scale)

    def _off(self, values: Tensor) -> float:
        """How far values are from the scale."""
        return float((values - self._guess(values)).abs().mean())

    def residuals(self, sums: Mapping[str, Tensor]) -> Tensor:
        """Residuals by coordinate, in units."""
        if self.name == AUTOREC:
            return read_autorec(self.params, dict(sums))
        return read_gaussian(self.params, dict(sums), self.settings.model.noise)


def _some(samples: Samples, size: int | None, key: Key) -> tuple[Tensor, Samples]:
    """Draw some columns with a residual, or take all."""
    matrix = samples.matrix
    index = matrix.columns.values.unique()
    if size is not None:
        index = index[key.bits(index).argsort()[:size]].sort().values
    some = matrix.of_columns(index)
    return index, Samples(some, 0, some.n_columns, are_columns=True, order=samples.order)


def _row(model: str, said: str, found: Sequence[Exposed]) -> dict[str, Any]:
    right, rounded = (
        torch.cat([getattr(one, name) for one in found]) for name in ("right", "rounded")
    )
    return {
        "model": model,
        "sum": said,
        "samples": sum(one.samples for one in found) / len(found),
        "right": float(right.double().mean()),
        "rounded": float(rounded.double().mean()),
        "empty": sum(one.empty for one in found) / len(found),
    }


def _said(size: int | None) -> str:
    if size is None:
        return "all of an organisation"
    return f"{size} of an organisation"


# The same for people.

_WORDS = {"right": "ratings read", "rounded": "(F⁰, rounded)", "empty": "cells known to be empty"}


def report(rows: Sequence[Mapping[str, Any]], settings: Settings) -> Report:
    """Lay the rows out.

    Args:
        rows: of `exposures`.
        settings: of the run.
    """
    covered = settings.privacy.noise != "none" or settings.privacy.clip is not None
    view = [
        {"model": row["model"], "sum over samples": row["sum"], "samples": f"{row['samples']:.3g}"}
        | {words: f"{100 * row[name]:.1f} %" for name, words in _WORDS.items()}
        for row in rows
    ]
    return Report(
        name=NAME,
        title="Ratings that the server recovers from sums over an organisation's samples",
        rows=rows,
        view=view,
        first=("samples",),
        notes=[
            "Each sum is read as if it were of one sample, F⁰ known. In brackets: without a sum.",
            "A cell is known to be empty where no sample of the sum has a residual at its row.",
            "With aggregate.secret the server sees the last line of each model alone.",
            "These are simple readers: a low share is no proof that nothing leaks.",
            *["The run's clip and noise are left out: sums are read as without them."] * covered,
        ],
        figure=None,
    )
