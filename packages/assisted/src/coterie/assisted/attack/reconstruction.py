"""Ratings and labels read off residuals.

Of squared loss a residual is 2 (R - F⁰). Where F⁰ is the same in a whole column the differences
of its ratings are exact, and where they span the scale of ratings, so are the ratings. Where F⁰
adds damped deviations of rows and columns, residuals add up to multiples of these, which so follow
too. Of logistic loss the sign of a residual is the label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.assisted.deviations import DAMPING
from coterie.core.data.interactions.alignment import Alignment

SLOPES = 2.0, 1.0
"""Of a residual in the rating: squared loss, Huber's loss. Nobody says which one it has."""
PRIOR = 0.575
"""Where a column's mean is guessed to be between lowest and highest rating: 3.3 of 1 to 5."""
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Reading:
    """What a column's residuals say of its ratings.

    Attributes:
        ratings: ``(n,)`` guessed ones, values of the scale.
        certain: ``(n,)`` bool, whether nothing else is possible.
        slope: of the residuals, by which most columns fit the scale.
    """

    ratings: Tensor
    certain: Tensor
    slope: float


@dataclass(frozen=True)
class Received:
    """Residuals of an organisation, and where they are.

    Attributes:
        residuals: ``(n,)`` float64.
        rows: ``(n,)`` int64.
        columns: ``(n,)`` int64.
        align: what rows are.
    """

    residuals: Tensor
    rows: Tensor
    columns: Tensor
    align: Alignment = "user"


def read_ratings(received: Received, scale: Tensor) -> Reading:
    """Guess ratings knowing nothing but the scale.

    Of several losses and base models that there may be, that by which most ratings are on the scale
    is taken. What is added to a column is such that its lowest rating is on the scale and, if
    possible, all others are too; of several such the nearest to the `PRIOR`, and where there is
    none, that.

    Args:
        received: of one organisation.
        scale: ``(G,)`` float64 ascending.

    Example:
        >>> residuals = 2 * torch.tensor([5.0, 1.0, 2.0, 4.0, 3.0]) - torch.tensor([6, 6, 6, 7, 7])
        >>> row, column = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 0, 0, 1, 1])
        >>> received = Received(residuals.double(), row, column)
        >>> found = read_ratings(received, torch.arange(1.0, 6.0).double())
        >>> found.ratings.tolist(), found.certain.tolist()
        ([5.0, 1.0, 2.0, 4.0, 3.0], [True, True, True, False, False])
    """
    best, most = None, -1
    for slope in SLOPES:
        above = received.residuals / slope
        all_alike = torch.zeros_like(received.columns)
        for values, columns in (
            (above, received.columns),
            (above + _deviations(above, received), all_alike),
        ):
            found, fitting = _read(values, columns, scale, slope)
            if fitting > most:
                best, most = found, fitting
    assert best is not None
    return best


def _deviations(above: Tensor, received: Received) -> Tensor:
    """Deviations of row and column, ``(n,)``, by what ratings are above F⁰ (`rating_deviations`).

    What is fitted last, users, is fitted to a mean with a damping of d ratings: what is left of a
    user's ratings adds up to d times the user's deviation. What is left of an item's adds up to d
    times its own, less those of its users.
    """
    places = received.rows, received.columns
    user, item = places if received.align == "user" else places[::-1]
    of_user = _sums(above, user) / DAMPING
    of_item = (_sums(above, item) + _sums(of_user[user], item)) / DAMPING
    return of_user[user] + of_item[item]


def _sums(values: Tensor, group: Tensor) -> Tensor:
    n_groups = int(group.max()) + 1 if group.numel() else 0
    return values.new_zeros(n_groups).index_add_(0, group, values)


def _read(values: Tensor, columns: Tensor, scale: Tensor, slope: float) -> tuple[Reading, int]:
    """Guess ratings from what they are above an unknown number of their column.

    Returns:
        The guess, and the number of cells in columns that fit the scale.
    """
    n_columns = int(columns.max()) + 1 if columns.numel() else 0
    prior = float(scale[0]) + PRIOR * float(scale[-1] - scale[0])
    lowest = values.new_full((n_columns,), math.inf).scatter_reduce(0, columns, values, "amin")
    best, possible = torch.full_like(lowest, math.inf), torch.zeros(n_columns, dtype=torch.int64)
    for rating in scale.tolist():
        mean = rating - lowest
        off = (values + mean[columns] - nearest(values + mean[columns], scale)).abs()
        worst = torch.zeros_like(lowest).scatter_reduce(0, columns, off, "amax")
        fits = worst < _TOLERANCE
        possible += fits
        best = torch.where(fits & ((mean - prior).abs() < (best - prior).abs()), mean, best)
    best = torch.where(possible > 0, best, prior)
    ratings = nearest(values + best[columns], scale)
    fitting = int((possible > 0)[columns].sum())
    return Reading(ratings, (possible == 1)[columns], slope), fitting


def with_means(residuals: Tensor, base: Tensor, scale: Tensor, slope: float) -> Tensor:
    """Guess ratings, ``(n,)``, knowing the base model F⁰ ``(n,)`` of every cell's column."""
    return nearest(residuals / slope + base, scale)


def read_labels(residuals: Tensor) -> Tensor:
    """Guess labels, ``(n,)`` 0 or 1, by the sign of their residuals."""
    return (residuals > 0).to(residuals)


def nearest(values: Tensor, scale: Tensor) -> Tensor:
    """The value of the scale that is nearest to each, ``(n,)``.

    Example:
        >>> nearest(torch.tensor([-3.0, 1.4, 9.0]), torch.tensor([1.0, 2.0])).tolist()
        [1.0, 1.0, 2.0]
    """
    return scale[torch.bucketize(values, (scale[1:] + scale[:-1]) / 2)]
