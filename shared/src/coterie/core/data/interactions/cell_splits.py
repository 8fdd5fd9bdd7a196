"""Which rated cells are to train on, to choose by, to report; which rows domains have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key


def split_cells(cells: int | Tensor, key: Key, test: float = 0.1, valid: float = 0.1) -> Tensor:
    """Deal out all cells in one keyed permutation, with exact counts.

    The first ``int((1 - test) n)`` of the permutation are not of the test, so the test cells are
    the same whatever ``valid`` is. Ratings and what is made of them (likes) share the split.

    Args:
        cells: number of cells n, or ``(n,)`` distinct int64 ids by which they are drawn: then a
            cell's place in the permutation does not depend on the order of the rows.
        key: of the permutation.
        test: share of all cells.
        valid: share of all cells.

    Returns:
        ``(n,)`` int64 part of every cell: `TRAIN`, `VALID` or `TEST`.

    Raises:
        UserError: impossible shares, or nothing is left to train on.

    Example:
        >>> part = split_cells(1000, Key.from_seed(0))
        >>> part.bincount().tolist()
        [800, 100, 100]
        >>> torch.equal(part == TEST, split_cells(1000, Key.from_seed(0), valid=0.0) == TEST)
        True
    """
    if min(test, valid) < 0 or test + valid >= 1:
        raise UserError(
            f"shares of {test:g} for the test and {valid:g} for validation leave nothing to train "
            "on: choose shares from 0 on that sum to less than 1"
        )
    ids = torch.arange(cells) if isinstance(cells, int) else cells
    n = ids.numel()
    not_test = int(n * (1 - test))
    n_train = not_test - round(n * valid)
    if n_train < 1:
        raise UserError(
            f"{n} ratings leave none to train on: choose more data, or lower test {test:g} or "
            f"valid {valid:g}"
        )
    draws = key.fold("cells").bits(ids)
    held_out = torch.where(draws < _following(draws, not_test), VALID, TEST)
    return torch.where(draws < _following(draws, n_train), TRAIN, held_out)


def common_rows(n_rows: int, fraction: float, key: Key) -> Tensor:
    """Which rows all domains know to be the same, ``(n_rows,)`` bool; others are each one's own.

    The fraction is rounded to whole rows; those of a fraction are among those of a larger one.

    Raises:
        UserError: the fraction is not in [0, 1].

    Example:
        >>> int(common_rows(9, 0.5, Key.from_seed(0)).sum())
        4
    """
    if not 0 <= fraction <= 1:
        raise UserError(f"a fraction of {fraction:g} of common rows: choose from 0 to 1")
    draws = key.fold("common").bits(torch.arange(n_rows))
    return draws < _following(draws, round(fraction * n_rows))


def _following(draws: Tensor, count: int) -> Tensor:
    """Give the draw that follows the ``count`` smallest, ``()``; after the last, a number above."""
    if count >= draws.numel():
        return torch.full((), torch.iinfo(torch.int64).max)
    return draws.kthvalue(count + 1).values
