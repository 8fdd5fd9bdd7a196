"""Rated cells of a matrix, row by row, and what each of K organisations holds of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.interactions.column_partitions import (
    Alignment,
    Partition,
    columns_of,
    features_of,
    rows_of,
)
from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID, Interactions
from coterie.core.data.interactions.splits import first_of_pair
from coterie.core.errors import UserError
from coterie.core.tensors.ordering import ascending, where_true
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class Cells:
    """Known cells of an ``(n_rows, n_columns)`` matrix; no cell twice.

    Attributes:
        columns: ascending column numbers of each row, int64.
        values: ``(n,)`` float32, aligned with ``columns.values``.
        n_columns: number of columns, empty ones included.

    Example:
        >>> row, column = torch.tensor([1, 0, 1]), torch.tensor([2, 1, 0])
        >>> cells = Cells.from_pairs(row, column, torch.tensor([5.0, 3.0, 4.0]), 2, 3)
        >>> cells.columns.tolists(), cells.values.tolist()
        ([[1], [0, 2]], [3.0, 4.0, 5.0])
        >>> cells.transposed().columns.tolists()
        [[1], [0], [1]]
    """

    columns: Ragged
    values: Tensor  # (n,) float32
    n_columns: int

    @staticmethod
    def from_pairs(
        rows: Tensor, columns: Tensor, values: Tensor, n_rows: int, n_columns: int
    ) -> Cells:
        """Sort cells that come in any order.

        Args:
            rows: ``(n,)`` int64 in [0, n_rows).
            columns: ``(n,)`` int64 in [0, n_columns).
            values: ``(n,)``.
            n_rows: number of rows, empty ones included.
            n_columns: number of columns, empty ones included.

        Raises:
            ValueError: a number is out of range, or a cell is there twice.
        """
        check_range("row", rows, n_rows)
        check_range("column", columns, n_columns)
        place = rows * n_columns + columns
        order = ascending(place, n_rows * n_columns)
        check_distinct(place[order], n_columns)
        lengths = torch.bincount(rows, minlength=n_rows)
        return Cells(Ragged.from_lengths(columns[order], lengths), values[order], n_columns)

    def __len__(self) -> int:
        return self.values.numel()

    @property
    def n_rows(self) -> int:
        """Number of rows, empty ones included."""
        return len(self.columns)

    @property
    def rows(self) -> Tensor:
        """Row number of every cell, ``(n,)`` int64, ascending."""
        return self.columns.rows

    def transposed(self) -> Cells:
        """The cells of the transposed matrix."""
        return Cells.from_pairs(
            self.columns.values, self.rows, self.values, self.n_columns, self.n_rows
        )

    def take(self, index: Tensor) -> Cells:
        """Rows ``index`` (``(m,)`` int64), in that order, copied."""
        values = Ragged(self.values, self.columns.offsets).take(index).values
        return Cells(self.columns.take(index), values, self.n_columns)

    def of_columns(self, index: Tensor) -> Cells:
        """Cells of some columns, numbered anew.

        Args:
            index: ``(k,)`` int64, ascending; column ``index[j]`` becomes j.

        Raises:
            ValueError: the numbers do not ascend, or are out of range.
        """
        check_range("column", index, self.n_columns)
        if bool((index[1:] <= index[:-1]).any()):
            raise ValueError("the columns to keep must ascend")
        number = torch.full((self.n_columns,), -1)
        number[index] = torch.arange(index.numel())
        found = number[self.columns.values]
        kept = where_true(found >= 0)
        lengths = torch.bincount(self.rows[kept], minlength=self.n_rows)
        return Cells(Ragged.from_lengths(found[kept], lengths), self.values[kept], index.numel())

    def to_dense(self, missing: float = 0.0) -> Tensor:
        """The whole matrix, ``(n_rows, n_columns)``, with ``missing`` in the other cells."""
        table = self.values.new_full((self.n_rows, self.n_columns), missing)
        table[self.rows, self.columns.values] = self.values
        return table


def check_range(name: str, numbers: Tensor, above: int) -> None:
    """Refuse numbers outside [0, above).

    Raises:
        ValueError: naming what they are numbers of.
    """
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < above:
        low, high = int(numbers.min()), int(numbers.max())
        raise ValueError(f"{name} numbers run from {low} to {high}, outside 0..{above - 1}")


def check_distinct(places: Tensor, n_columns: int) -> None:
    """Refuse cells that are there twice, by ascending places: row times ``n_columns`` plus column.

    Raises:
        ValueError: naming one.
    """
    twice = (places[1:] == places[:-1]).nonzero()
    if twice.numel():
        row, column = divmod(int(places[twice[0, 0]]), n_columns)
        raise ValueError(f"the cell in row {row} and column {column} is there twice")


# Ratings as known cells of a matrix: there are some, they are in range, no cell is there twice.


def rated(interactions: Interactions, scale: tuple[float, float] | None = None) -> Interactions:
    """Keep one rating of each user for each item, the first in the order of the rows.

    Args:
        interactions: with ratings.
        scale: lowest and highest rating that there may be, or None for any.

    Raises:
        UserError: there are no ratings, or one is outside the scale.
    """
    ratings = require_ratings(interactions)
    if scale is not None:
        outside = (ratings < scale[0]) | (ratings > scale[1])
        if bool(outside.any()):
            raise UserError(
                f"{interactions.source} has a rating of {float(ratings[outside][0]):g}, outside "
                f"the scale from {scale[0]:g} to {scale[1]:g}: correct the file or the scale"
            )
    pair = interactions.user * interactions.n_items + interactions.item
    ordered = pair[ascending(pair, interactions.n_users * interactions.n_items)]
    if not bool((ordered[1:] == ordered[:-1]).any()):
        return interactions
    again = torch.ones(len(interactions), dtype=torch.bool)
    again[first_of_pair(interactions.user, interactions.item, interactions.n_items)] = False
    return interactions.without(again, "later ratings of an item by the same user")


def require_ratings(interactions: Interactions) -> Tensor:
    """Return the ratings, ``(n,)`` float32.

    Raises:
        UserError: there are none.
    """
    if interactions.rating is None:
        raise UserError(
            f"{interactions.source} has no ratings: choose a data set with ratings, or name the "
            "column of a file of yours by --data.columns rating=COLUMN"
        )
    return interactions.rating


# What each of K organisations holds of a matrix of ratings whose rows they have in common.

_PARTS = 3  # train, validation, test


@dataclass(frozen=True)
class Domain:
    """What one organisation holds, in numbers of its own.

    Attributes:
        name: of the organisation.
        rows: ``(m,)`` int64 global numbers of its rows, ascending.
        columns: ``(n_k,)`` int64 global numbers of its columns, ascending.
        train: its cells to train on; row i is ``rows[i]``, column j is ``columns[j]``.
        valid: those to choose by.
        test: those to report.
        row_features: ``(m, d_r)`` float32 what is known of the rows, or None: profiles of users,
            or genres of items (`GENRES`) where rows are items.
        column_features: ``(n_k, d_c)`` float32 what is known of the columns, or None.
    """

    name: str
    rows: Tensor  # (m,) int64
    columns: Tensor  # (n_k,) int64
    train: Cells
    valid: Cells
    test: Cells
    row_features: Tensor | None = None  # (m, d_r) float32
    column_features: Tensor | None = None  # (n_k, d_c) float32


def cut(
    interactions: Interactions, alignment: Alignment, partition: Partition, part: Tensor
) -> list[Domain]:
    """Cut the matrix of ratings into what each organisation holds.

    All users (the rows of a user-aligned matrix) are in every domain, those without a rating there
    included.

    Args:
        interactions: n ratings, no pair of user and item twice, as from `rated`.
        alignment: "user": rows are users, columns items; "item": the reverse.
        partition: of the columns.
        part: ``(n,)`` int64 part of every rating: `TRAIN`, `VALID` or `TEST`.

    Raises:
        UserError: there are no ratings, or a domain has none to train on.
        ValueError: a pair is there twice, or partition or parts do not fit the interactions.
    """
    ratings = require_ratings(interactions)
    rows, n_rows = rows_of(interactions, alignment)
    columns, n_columns = columns_of(interactions, alignment)
    if partition.of_column.numel() != n_columns or part.numel() != len(interactions):
        raise ValueError(
            f"a partition of {partition.of_column.numel()} columns and parts of {part.numel()} "
            f"cells do not fit {n_columns} columns and {len(interactions)} cells"
        )
    check_range("domain", partition.of_column, len(partition))
    check_range("part", part, _PARTS)
    held = Ragged.from_pairs(partition.of_column, torch.arange(n_columns), len(partition))
    number = torch.empty_like(held.values)
    number[held.values] = held.positions
    matrix = partition.of_column[columns] * _PARTS + part
    cells = _cut_cells(matrix, rows, number[columns], ratings, n_rows, held.lengths)
    of_rows, of_columns = features_of(interactions, alignment)
    domains = [
        Domain(
            name,
            torch.arange(n_rows),
            mine.clone(),
            cells[_PARTS * k + TRAIN],
            cells[_PARTS * k + VALID],
            cells[_PARTS * k + TEST],
            of_rows,
            None if of_columns is None else of_columns[mine],
        )
        for k, (name, mine) in enumerate(
            zip(partition.names, held.values.split(held.lengths.tolist()), strict=True)
        )
    ]
    for domain in domains:
        if not len(domain.train):
            raise UserError(
                f"domain '{domain.name}' of {interactions.source} has no rating to train on: "
                "choose fewer domains, another partition, or more data"
            )
    return domains


def _cut_cells(
    matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor, n_rows: int, widths: Tensor
) -> list[Cells]:
    """Cells of several matrices of the same rows.

    Args:
        matrix: ``(n,)`` int64 matrix of every cell: domain times three plus part.
        rows: ``(n,)`` int64 row of every cell.
        columns: ``(n,)`` int64 column of every cell in its matrix.
        values: ``(n,)``.
        n_rows: number of rows of each matrix.
        widths: ``(K,)`` int64 number of columns of each domain.
    """
    n_matrices, width = _PARTS * widths.numel(), int(widths.max())
    row = matrix * n_rows + rows  # of all matrices one below the other
    place = row * width + columns
    order = ascending(place, n_matrices * n_rows * width)
    check_distinct(place[order], width)
    sizes = torch.bincount(matrix, minlength=n_matrices).tolist()
    lengths = torch.bincount(row, minlength=n_matrices * n_rows).split(n_rows)
    parts = zip(
        columns[order].split(sizes),
        values[order].split(sizes),
        lengths,
        widths.repeat_interleave(_PARTS).tolist(),
        strict=True,
    )
    return [
        # Copies: a view would keep, and save, the cells of all organisations.
        Cells(Ragged.from_lengths(column.clone(), length), value.clone(), n_columns)
        for column, value, length, n_columns in parts
    ]
