"""A normal distribution of samples: what is learned is how their coordinates vary together.

Sample i has residuals r = z + e at the coordinates O that are rated; z ~ N(0, S) has all d of them,
e ~ N(0, noise). One step of expectation-maximisation (Dempster, Laird, Rubin, 1977) over n samples
is S <- S - S A S / n, with A = Σ_i [K⁻¹ - K⁻¹ r r' K⁻¹] placed at O x O and K = S_OO + noise I.
So A is a sum over whoever holds samples. Where nothing is rated, S_uO K⁻¹ r is expected.

S is kept as U U' + diag(v), with few columns of U: these are the largest directions Q, scaled. A
step needs no more of A than A Q and its diagonal, which are small, and K⁻¹ is had from matrices of
the rank (Woodbury). Q has some directions more than U, which are how others come into S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.assisted.samples.matrix import Asked
from coterie.assisted.samples.sums import Sums
from coterie.core.data.interactions.cells import Cells
from coterie.core.local_training.row_optimizer import Params
from coterie.core.tensors.keys import Key

DIRECTIONS, SCALES, OWN = "directions", "scales", "own"
"""Names of the parameters: Q ``(d, q)``, squared lengths of U's columns ``(r,)``, v ``(d,)``."""
IMAGE, DIAGONAL = "image", "diagonal"
"""Names of what is summed: A Q ``(d, q)`` and the diagonal of A ``(d,)``."""
SPARE = 10
"""Directions of Q beyond those of U."""
_VARIANCE, _COMMON, _SINGLE = 0.45, 0.02, 0.9
"""Variance of z before the first step, in residuals of mean square 1; shares of it that all
coordinates have in common, and that each has alone."""
_LEAST, _MOST = 1e-3, 1e4
"""Of a variance: noise for privacy can lead anywhere."""


def begin(size: int, rank: int, key: Key, dtype: torch.dtype = torch.float32) -> Params:
    """Give the distribution before the first step: coordinates vary alike, and nearly alone.

    Args:
        size: number d of coordinates.
        rank: most columns of U.
        key: of the directions that are looked into first.
        dtype: of the parameters.
    """
    rank, width = _sizes(size, rank)
    drawn = key.normal(size, width, dtype=torch.float64)
    drawn[:, 0] = 1.0
    scales = torch.zeros(rank, dtype=torch.float64)
    scales[0] = _VARIANCE * _COMMON * size
    own = torch.full((size,), _VARIANCE * _SINGLE, dtype=torch.float64)
    found = {DIRECTIONS: torch.linalg.qr(drawn).Q, SCALES: scales, OWN: own}
    return {name: value.to(dtype) for name, value in found.items()}


def shapes(size: int, rank: int) -> dict[str, tuple[int, ...]]:
    """Shapes of what is summed."""
    return {IMAGE: (size, _sizes(size, rank)[1]), DIAGONAL: (size,)}


def statistic(params: Params, cells: Cells, noise: float) -> Sums:
    """Compute what a step needs of samples; that of more samples is the sum.

    The loss is -2 log of the samples' density, less what never changes.

    Args:
        params: of the distribution.
        cells: ``(n, d)`` residuals.
        noise: variance of e.

    Example:
        >>> from coterie.core.tensors.keys import Key
        >>> params = begin(3, 1, Key.from_seed(0), torch.float64)
        >>> zero = torch.tensor([0])
        >>> one = Cells.from_pairs(zero, zero, torch.tensor([2.0]), 1, 3)
        >>> k = float(covariance(params)[0, 0]) + 0.5
        >>> found = statistic(params, one, noise=0.5).values[DIAGONAL]
        >>> abs(float(found[0]) - (1 / k - (2 / k) ** 2)) < 1e-9, found[1:].tolist()
        (True, [0.0, 0.0])
    """
    directions = params[DIRECTIONS].double()
    image, diagonal = torch.zeros_like(directions), torch.zeros_like(params[OWN]).double()
    loss, count = torch.zeros((), dtype=torch.float64), 0
    for one in _solved(params, cells, noise):
        seen = directions[one.at]
        part = one.solved(seen)
        part -= torch.outer(one.weights, one.weights @ seen)
        image.index_add_(0, one.at, part)
        diagonal.index_add_(0, one.at, one.inverse_diagonal - one.weights.square())
        loss += one.log_determinant + one.residuals @ one.weights
        count += 1
    dtype = params[OWN].dtype
    sums = {IMAGE: image.to(dtype), DIAGONAL: diagonal.to(dtype)}
    return Sums(sums, loss.to(dtype), count)


def moved(params: Params, sums: Params, samples: int) -> Params:
    """Take a step: S <- S - S A S / n, of which the largest directions and the diagonal are kept.

    Of A only Q Q' A + A Q Q' - Q Q' A Q Q' is known, beside its diagonal. So the step is exact
    where Q spans everything, and else in all but what lies outside Q on both sides.

    Args:
        params: of the distribution.
        sums: over all samples, see `statistic`.
        samples: number n of them, at least 1.

    Example:
        >>> from coterie.core.tensors.keys import Key
        >>> params = begin(2, 1, Key.from_seed(0), torch.float64)
        >>> alike = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
        >>> place = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
        >>> cells = Cells.from_pairs(*place, alike.flatten(), 2, 2)
        >>> for _ in range(9):
        ...     found = statistic(params, cells, noise=0.1)
        ...     params = moved(params, found.values, found.samples)
        >>> [round(value, 1) for value in covariance(params).flatten().tolist()]
        [1.0, 0.9, 0.9, 1.0]
    """
    now = {name: value.double() for name, value in params.items()}
    q, own, factor = now[DIRECTIONS], now[OWN], factor_of(now)
    image, diagonal = sums[IMAGE].double(), sums[DIAGONAL].double()
    within = q.T @ image
    within = (within + within.T) / 2
    # S - S A S / n, less diag(v), is B C B' with these B.
    wide = torch.cat([factor, *(_times(factor, own, part) for part in (q, image))], 1)
    r, width = factor.shape[1], q.shape[1]
    core = wide.new_zeros(wide.shape[1], wide.shape[1])
    core[:r, :r] = torch.eye(r, dtype=core.dtype)
    core[r : r + width, r : r + width] = within / samples
    cross = torch.eye(width, dtype=core.dtype) / samples
    core[r : r + width, r + width :] = core[r + width :, r : r + width] = -cross
    spanned, triangle = torch.linalg.qr(wide)
    lengths, turned = torch.linalg.eigh(triangle @ core @ triangle.T)
    order = lengths.argsort(descending=True)
    kept = spanned @ turned[:, order[:width]]
    scales = lengths[order[:r]].clamp(0.0, _MOST * len(own))
    a_factor = image @ (q.T @ factor)  # U lies within Q
    inner = (factor @ (factor.T @ a_factor) * factor).sum(1)
    gained = inner + 2 * own * (factor * a_factor).sum(1) + own.square() * diagonal
    variance = own + factor.square().sum(1) - gained / samples
    left = variance - (kept[:, :r].square() * scales).sum(1)
    found = {DIRECTIONS: kept, SCALES: scales, OWN: left.clamp(_LEAST, _MOST)}
    return {name: value.to(params[name].dtype) for name, value in found.items()}


def expected(params: Params, own: Cells, asked: Asked, noise: float) -> Tensor:
    """Residuals to expect at cells without one, by the others of the same sample.

    Args:
        params: of the distribution.
        own: ``(n, d)`` residuals of the samples.
        asked: cells of the same samples.
        noise: variance of e.

    Returns:
        ``(k,)``, in the order of the matrix that is asked about; 0 in samples without a residual.
    """
    factor = factor_of(params).double()
    scores = factor.new_zeros(own.n_rows, factor.shape[1])
    for one in _solved(params, own, noise):
        scores[one.number] = factor[one.at].T @ one.weights
    found = (scores[asked.cells.rows] * factor[asked.cells.columns.values]).sum(1)
    return asked.back(found.to(own.values.dtype))


def factor_of(params: Params) -> Tensor:
    """U, ``(d, r)``."""
    scales = params[SCALES]
    return params[DIRECTIONS][:, : len(scales)] * scales.sqrt()


def covariance(params: Params) -> Tensor:
    """S, ``(d, d)``; for small d."""
    factor = factor_of(params)
    return factor @ factor.T + torch.diag(params[OWN])


@dataclass(frozen=True)
class _Sample:
    """One sample with residuals, solved.

    Attributes:
        number: of the sample.
        at: ``(o,)`` O.
        residuals: ``(o,)`` r.
        weights: ``(o,)`` K⁻¹ r.
        scaled: ``(o, r)`` E⁻¹ U_O, where K = E + U_O U_O'.
        inner: ``(r, o)`` M⁻¹ U_O' E⁻¹, where M = I + U_O' E⁻¹ U_O.
        inverse: ``(o,)`` diagonal of E⁻¹.
        log_determinant: ``()`` log |K|.
    """

    number: int
    at: Tensor
    residuals: Tensor
    weights: Tensor
    scaled: Tensor
    inner: Tensor
    inverse: Tensor
    log_determinant: Tensor

    def solved(self, values: Tensor) -> Tensor:
        """K⁻¹ times ``(o, k)``."""
        return values * self.inverse[:, None] - self.scaled @ (self.inner @ values)

    @property
    def inverse_diagonal(self) -> Tensor:
        """Diagonal of K⁻¹, ``(o,)``."""
        return self.inverse - (self.scaled * self.inner.T).sum(1)


def _solved(params: Params, cells: Cells, noise: float) -> Iterator[_Sample]:
    """Solve each sample that has a residual."""
    factor, own = factor_of(params).double(), params[OWN].double()
    one = torch.eye(factor.shape[1], dtype=factor.dtype)
    lengths = cells.columns.lengths
    parts = zip(
        cells.columns.values.split(lengths.tolist()),
        cells.values.double().split(lengths.tolist()),
        strict=True,
    )
    for number, (at, residuals) in enumerate(parts):
        if not len(at):
            continue
        inverse = 1.0 / (own[at] + noise)
        seen = factor[at]
        scaled = seen * inverse[:, None]
        triangle = torch.linalg.cholesky(one + seen.T @ scaled)
        inner = torch.cholesky_solve(scaled.T, triangle)
        weights = inverse * residuals - scaled @ (inner @ residuals)
        determinant = 2 * triangle.diagonal().log().sum() - inverse.log().sum()
        yield _Sample(number, at, residuals, weights, scaled, inner, inverse, determinant)


def _times(factor: Tensor, own: Tensor, values: Tensor) -> Tensor:
    """S times ``(d, k)``."""
    return factor @ (factor.T @ values) + own[:, None] * values


def _sizes(size: int, rank: int) -> tuple[int, int]:
    """Columns of U and of Q."""
    return min(rank, size), min(rank + SPARE, size)
