"""Random ratings of the sizes of public data sets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.assisted.aae.cells import Inputs, Pattern
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class Size:
    """A data set, and how it is trained on.

    Attributes:
        name: of the data set.
        rows: number of users m.
        columns: number of items of all organisations.
        ratings: to train on, of all organisations.
        organisations: K; one of them has every K-th item.
        batch_rows: rows of a mini-batch.
        sides: features of each kind of side information.
    """

    name: str
    rows: int
    columns: int
    ratings: int
    organisations: int
    batch_rows: int
    sides: tuple[tuple[str, int], ...] = ()


PROFILE, ATTRIBUTES = ("profile", 30), ("attributes", 18)
ML_100K = Size("ML-100K", 943, 1682, 90_000, 18, 100, (PROFILE, ATTRIBUTES))
ML_100K_RATINGS = replace(ML_100K, name="ML-100K, ratings alone", sides=())
ML_1M = Size("ML-1M", 6040, 3706, 900_000, 18, 500, (PROFILE, ATTRIBUTES))
ML_10M = Size("ML-10M", 69_878, 10_677, 9_000_000, 18, 1000, (ATTRIBUTES,))


@dataclass(frozen=True)
class Drawn:
    """What one of the organisations trains on.

    Attributes:
        inputs: its own ratings, m rows.
        pattern: cells of all organisations.
        values: targets at them, ``(nnz,)``.
    """

    inputs: Inputs
    pattern: Pattern
    values: Tensor


def draw(size: Size, key: Key, dtype: torch.dtype = torch.float32) -> Drawn:
    """Draw what the first organisation trains on."""
    row, column = draw_cells(size, key)
    own = column % size.organisations == 0
    columns = Ragged.from_pairs(row[own], column[own] // size.organisations, size.rows)
    places = torch.arange(0, size.columns, size.organisations)
    ratings = 1 + key.fold("rating").integers(5, torch.arange(int(own.sum())))
    sides = {name: key.fold(name).uniform(size.rows, d, dtype=dtype) for name, d in size.sides}
    return Drawn(
        Inputs(columns, ratings.to(dtype), len(places), sides, places),
        Pattern(Ragged.from_pairs(row, column, size.rows), size.columns),
        key.fold("target").normal(len(row), dtype=dtype),
    )


def draw_cells(size: Size, key: Key) -> tuple[Tensor, Tensor]:
    """Draw who rates what, rows and columns ``(ratings,)`` int64, by row.

    Numbers of a user's ratings are log-normal, items are as popular as one over their rank.
    """
    activity = key.fold("activity").normal(size.rows).exp()
    wanted = (activity * (1.6 * size.ratings / activity.sum())).clamp(15, size.columns / 3).long()
    row = torch.repeat_interleave(wanted)
    popularity = 1.0 / (torch.arange(size.columns) + 0.02 * size.columns)
    places = key.fold("column").uniform(len(row)) * popularity.sum()
    column = torch.searchsorted(popularity.cumsum(0), places).clamp(max=size.columns - 1)
    column = column * _STRIDE % size.columns  # the popular ones are scattered
    cell = torch.unique(row * size.columns + column)
    kept = key.fold("kept").bits(cell).argsort(stable=True)[: size.ratings]
    cell = cell[kept.sort().values]
    return cell // size.columns, cell % size.columns


_STRIDE = 7919  # a prime, so that no two columns meet
