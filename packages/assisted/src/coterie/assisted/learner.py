"""What an organisation learns with: its loss, its base model, its network and its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from coterie.assisted.aae.cells import Inputs
from coterie.assisted.aae.network import AAE
from coterie.assisted.aae.training import Plan
from coterie.assisted.data import OwnDomain
from coterie.assisted.objective import OF_FEEDBACK, Objective, objective
from coterie.assisted.settings import Settings
from coterie.core.data.interactions.cells import Cells
from coterie.core.data.interactions.column_partitions import Alignment
from coterie.core.methods.ranking.references import fit_bias

DAMPING = 5.0
"""Ratings at which a deviation counts half. On validation cells of ML-100K (seeds 0 to 2, joint and
alone, both alignments) the RMSE is .009 to .021 less than by the defaults of `fit_bias`."""
_RIDGE = 2.0
"""Pull on the logits' deviations. On such cells, of organisations alone, 1 and .5 rank worse, by up
to .008 MAP@10; 4 ranks as well."""
_SWEEPS = 15


def rating_deviations(cells: Cells, align: Alignment) -> tuple[Tensor, Tensor]:
    """Fit R = row + column, items first, then users (`coterie.core.methods.ranking.references`).

    Args:
        cells: ratings; without one all is 0.
        align: "user" if rows are users, "item" if they are items.

    Returns:
        Deviations of rows ``(m,)``, mean and deviations of columns ``(n_columns,)``.

    Example:
        >>> row, column = torch.tensor([0, 1]), torch.tensor([0, 0])
        >>> cells = Cells.from_pairs(row, column, torch.tensor([4.0, 4.0]), 2, 2)
        >>> [part.tolist() for part in rating_deviations(cells, "user")]
        [[0.0, 0.0], [4.0, 4.0]]
    """
    if not len(cells):
        return cells.values.new_zeros(cells.n_rows), cells.values.new_zeros(cells.n_columns)
    places = {"row": cells.rows, "column": cells.columns.values}
    counts = {"row": cells.n_rows, "column": cells.n_columns}
    user, item = ("row", "column") if align == "user" else ("column", "row")
    model = fit_bias(
        places[user], places[item], cells.values, counts[user], counts[item], DAMPING, DAMPING
    )
    if align == "user":
        return model.user, model.mean + model.item
    return model.item, model.mean + model.user


def label_deviations(cells: Cells) -> tuple[Tensor, Tensor]:
    """Fit logits of positives as row + column, with a ridge (Rasch, 1960).

    Rows and columns take turns in Newton steps, from the logit of the smoothed share of positives;
    that stays as it is.

    Args:
        cells: labels, 0 or 1.

    Returns:
        As `rating_deviations`, logits.
    """
    row, column, label = cells.rows, cells.columns.values, cells.values.double()
    share = (label.sum() + 1.0) / (len(label) + 2.0)
    by_row, by_column = label.new_zeros(cells.n_rows), label.new_zeros(cells.n_columns)
    for _ in range(_SWEEPS):
        for values, place in ((by_column, column), (by_row, row)):
            p = (share.logit() + by_row[row] + by_column[column]).sigmoid()
            slope = (-_RIDGE * values).index_add_(0, place, label - p)
            bend = torch.full_like(values, _RIDGE).index_add_(0, place, p * (1.0 - p))
            values += slope / bend
    found = by_row, share.logit() + by_column
    return found[0].to(cells.values), found[1].to(cells.values)


# Base models: what is predicted before the first round, and without any training at all.

Start = Literal["mean", "logit", "smoothed", "constant", "bias"]


@dataclass(frozen=True)
class Base:
    """F⁰ of every cell: that of its column, and what its row deviates from it.

    Attributes:
        column: ``(n_columns,)``.
        row: ``(m,)``; None where all rows are taken alike.
    """

    column: Tensor
    row: Tensor | None = None

    def at(self, cells: Cells) -> Tensor:
        """F⁰ at some cells, ``(n,)``."""
        found = self.column[cells.columns.values]
        return found if self.row is None else found + self.row[cells.rows]


def base_model(cells: Cells, objective: Objective, start: Start, align: Alignment = "user") -> Base:
    """Fit F⁰ to an organisation's cells: F⁰(R) = E(R) of every column (section 3.3).

    Of ratings that is the mean of the column. Of implicit feedback the share of positives among the
    rows that have a cell at all: as it is where ``start`` is "mean" (the public code, where the
    share is taken for its own logit), its logit, or the logit of (s + 1) / (n + 2), a column's
    share of positives among its own n cells. "constant" is that too, and of ratings the mean of
    all (ours). "bias" adds what a row deviates, see `coterie.assisted.learner`; of ratings all
    others are the same.

    Args:
        cells: with ratings or labels.
        objective: says which.
        start: which base model.
        align: what rows are.

    Example:
        >>> from coterie.assisted.objective import Squared
        >>> row, column = torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1])
        >>> cells = Cells.from_pairs(row, column, torch.tensor([5.0, 3.0, 2.0]), 2, 3)
        >>> base_model(cells, Squared(), "mean").column.tolist()
        [4.0, 2.0, 3.0]
    """
    if start == "bias":
        if objective.is_rating:
            row, column = rating_deviations(cells, align)
        else:
            row, column = label_deviations(cells)
        return Base(column, row)
    if objective.is_rating:
        if start == "constant" and len(cells):
            return Base(constant(cells, objective).expand(cells.n_columns))
        return Base(column_mean(cells))
    if start in ("smoothed", "constant"):
        return Base(smoothed_rate(cells).logit())
    active = (cells.columns.lengths > 0).sum().clamp_min(1)
    share = _sums(cells) / active
    if start == "mean":
        return Base(share)
    half = 0.5 / active
    return Base(share.clamp(half, 1.0 - half).logit())


def constant(cells: Cells, objective: Objective) -> Tensor:
    """Score all cells alike, ``()``: by the mean rating, or the logit of (s + 1) / (n + 2)."""
    if objective.is_rating:
        return cells.values.mean()
    return ((cells.values.sum() + 1.0) / (len(cells) + 2.0)).logit()


def column_mean(cells: Cells) -> Tensor:
    """Mean of every column, ``(n_columns,)``; of an empty one the mean of the others' means."""
    count = _counts(cells)
    mean = _sums(cells) / count.clamp_min(1)
    known = count > 0
    return torch.where(known, mean, mean[known].mean() if bool(known.any()) else 0.0)


def smoothed_rate(cells: Cells) -> Tensor:
    """Share of positives of every column, (s + 1) / (n + 2), ``(n_columns,)``.

    It needs no peer: what a column's own cells say, between 0 and 1.
    """
    return (_sums(cells) + 1.0) / (_counts(cells) + 2.0)


def _sums(cells: Cells) -> Tensor:
    total = cells.values.new_zeros(cells.n_columns)
    return total.index_add_(0, cells.columns.values, cells.values)


def _counts(cells: Cells) -> Tensor:
    return torch.bincount(cells.columns.values, minlength=cells.n_columns)


@dataclass(frozen=True)
class Learner:
    """An organisation's own choices; its peers know none of them.

    Attributes:
        settings: with the reading's choices resolved.
        data: what it holds.
    """

    settings: Settings
    data: OwnDomain

    @cached_property
    def objective(self) -> Objective:
        """The overarching loss L_k."""
        return objective_of(self.settings, self.data.domain.name)

    @property
    def relevant_above(self) -> float:
        """Value of a cell above which it is relevant."""
        return self.settings.data.threshold if self.objective.is_rating else 0.5

    @cached_property
    def base(self) -> Base:
        """F⁰, of its own cells only."""
        start, align = self.settings.start or "smoothed", self.settings.data.align
        return base_model(self.data.train, self.objective, start, align)

    def network(self, n_outputs: int) -> AAE:
        """The autoencoder from its own columns to ``n_outputs``."""
        hidden, code = self.settings.model.widths(self.data.domain.name)
        sides = {name: features.shape[1] for name, features in self._sides.items()}
        n_inputs, dropout = self.data.train.n_columns, self.settings.model.dropout
        return AAE(n_inputs, n_outputs, sides, hidden, code, dropout)

    def inputs(self, first_column: int) -> Inputs:
        """What the encoder reads: its training cells, and side information if it uses any.

        Its own columns are those from ``first_column`` on among the outputs.
        """
        cells = self.data.train
        places = first_column + torch.arange(cells.n_columns)
        return Inputs(cells.columns, self._values, cells.n_columns, self._sides, places)

    @cached_property
    def plan(self) -> Plan:
        """How the network is trained."""
        how = self.settings.train
        # Models of samples fit all that they are given.
        visible = how.own_targets == "hidden" and self.settings.model.name == "aae"
        return Plan(
            how.epochs, how.batch_rows, how.lr, how.weight_decay, how.clip, how.hide, visible
        )

    @cached_property
    def _values(self) -> Tensor:
        cells = self.data.train
        if self.settings.model.inputs == "raw":
            return cells.values
        return cells.values - column_mean(cells)[cells.columns.values]

    @cached_property
    def _sides(self) -> dict[str, Tensor]:
        """Features of a row, and the sum of those of the columns that it has rated (Figure 2)."""
        if not self.settings.data.side:
            return {}
        domain, found = self.data.domain, {}
        if domain.row_features is not None:
            found["profile"] = domain.row_features
        if domain.column_features is not None:
            found["attributes"] = summed(self.data.train, domain.column_features)
        return found


def objective_of(settings: Settings, name: str) -> Objective:
    """The loss of the organisation of a name.

    Raises:
        UserError: settings name one that there is not.
    """
    usual = OF_FEEDBACK[settings.data.feedback]
    return objective((settings.objectives or {}).get(name, usual))


def summed(cells: Cells, features: Tensor) -> Tensor:
    """Sum the features of the columns that each row has cells in.

    Args:
        cells: of m rows.
        features: ``(n_columns, d)``.

    Returns:
        ``(m, d)``.
    """
    total = features.new_zeros(cells.n_rows, features.shape[1])
    return total.index_add_(0, cells.rows, features[cells.columns.values])
