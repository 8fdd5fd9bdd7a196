"""What each of K organisations holds of a matrix of ratings whose rows they have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.interactions.alignment import Alignment, columns_of, features_of, rows_of
from coterie.core.data.interactions.cells import Cells, check_distinct, check_range
from coterie.core.data.interactions.column_partitions import Partition
from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID, Interactions
from coterie.core.data.interactions.rated import require_ratings
from coterie.core.errors import UserError
from coterie.core.tensors.ordering import ascending
from coterie.core.tensors.ragged import Ragged

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
