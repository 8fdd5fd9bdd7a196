"""Deviations of an organisation's own rows and columns: what it knows of them without any peer."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.data.interactions.alignment import Alignment
from coterie.core.data.interactions.cells import Cells
from coterie.core.methods.reference.bias import fit_bias

DAMPING = 5.0
"""Ratings at which a deviation counts half. On validation cells of ML-100K (seeds 0 to 2, joint and
alone, both alignments) the RMSE is .009 to .021 less than by the defaults of `fit_bias`."""
_RIDGE = 2.0
"""Pull on the logits' deviations. On such cells, of organisations alone, 1 and .5 rank worse, by up
to .008 MAP@10; 4 ranks as well."""
_SWEEPS = 15


def rating_deviations(cells: Cells, align: Alignment) -> tuple[Tensor, Tensor]:
    """Fit R = row + column, items first, then users (`coterie.core.methods.reference.bias`).

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
