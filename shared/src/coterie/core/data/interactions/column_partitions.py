"""Which organisation holds which columns of a matrix of ratings, and which cells it trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.core.data.interactions.features import GENRES, genre_table
from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID, Interactions
from coterie.core.data.samples.partitions import equal_sizes
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key

Alignment = Literal["user", "item"]


def rows_of(interactions: Interactions, alignment: Alignment) -> tuple[Tensor, int]:
    """Row number of every interaction, ``(n,)`` int64, and the number of rows."""
    if alignment == "user":
        return interactions.user, interactions.n_users
    return interactions.item, interactions.n_items


def columns_of(interactions: Interactions, alignment: Alignment) -> tuple[Tensor, int]:
    """Column number of every interaction, ``(n,)`` int64, and the number of columns."""
    return rows_of(interactions, "item" if alignment == "user" else "user")


def features_of(
    interactions: Interactions, alignment: Alignment
) -> tuple[Tensor | None, Tensor | None]:
    """What is known of rows and of columns, ``(n_rows, d_r)`` and ``(n_columns, d_c)`` float32.

    Of users their profile, of items which of the `GENRES` they have; None where neither is known.
    """
    users = None if interactions.user_features is None else interactions.user_features.values
    items = None if interactions.genres is None else genre_table(interactions.genres)
    if items is not None and not bool(items.any()):
        items = None
    return (users, items) if alignment == "user" else (items, users)


# Which organisation holds which columns (items, or the users of a transposed matrix).

Partitioning = Literal["whole", "uniform", "genre", "source"]

_DRAWS = 1000  # of the genre of each item, until each domain has what it needs


@dataclass(frozen=True)
class Partition:
    """Columns of K domains; each column is in one of them.

    Attributes:
        of_column: ``(n_columns,)`` int64 domain of every column, below K.
        names: of the K domains.
    """

    of_column: Tensor  # (n_columns,) int64
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


def partition_columns(
    interactions: Interactions,
    alignment: Alignment,
    how: Partitioning,
    part: Tensor,
    key: Key,
    n_domains: int = 8,
) -> Partition:
    """Say which organisation holds which columns.

    Args:
        interactions: whose items (or users) are shared out.
        alignment: "user": columns are items, "item": users.
        how: "whole": one domain, "uniform": ``n_domains`` equal ones, "genre": one a genre,
            "source": as the data say.
        part: ``(n,)`` int64 part of every row of ``interactions``, from `split_cells`.
        key: of the draws.
        n_domains: number of uniform domains.

    Raises:
        UserError: genres or the source's own domains for users, what the source does not know, or
            no partition that gives each domain cells to train on and to test.
    """
    columns, n_columns = columns_of(interactions, alignment)
    if how == "whole":
        return whole(n_columns)
    if how == "uniform":
        return uniform(n_columns, n_domains, key)
    if alignment == "item":
        raise UserError(
            f"a partition by {how} shares out items, but with item alignment organisations share "
            "out users: choose user alignment, or the uniform partition"
        )
    if how == "source":
        return by_source(interactions.domains, interactions.source)
    if interactions.genres is None:
        raise UserError(
            f"{interactions.source} has no genres: choose another data set, or the uniform "
            "partition"
        )
    needed = count_parts(columns, part, (TRAIN, TEST), n_columns)
    return by_genre(interactions.genres, key, needed)


def whole(n_columns: int) -> Partition:
    """One domain that has all columns: what organisations could do if they shared their data."""
    return Partition(torch.zeros(n_columns, dtype=torch.int64), ("all",))


def uniform(
    n_columns: int, n_domains: int, key: Key, rest: Literal["spread", "last"] = "spread"
) -> Partition:
    """Share out columns at random in equal parts.

    Args:
        n_columns: number of columns n.
        n_domains: number of domains K.
        key: of the permutation.
        rest: "spread": sizes differ by 1 at most; "last": each domain gets n // K columns, and the
            last one the remainder too, as MTAL's public code has it.

    Raises:
        UserError: more domains than columns, or none.

    Example:
        >>> uniform(11, 4, Key.from_seed(0)).of_column.bincount().tolist()
        [2, 3, 3, 3]
        >>> uniform(11, 4, Key.from_seed(0), rest="last").of_column.bincount().tolist()
        [2, 2, 2, 5]
    """
    if not 1 <= n_domains <= n_columns:
        raise UserError(
            f"{n_columns} columns cannot be shared out among {n_domains} domains: choose from 1 to "
            f"{n_columns} domains"
        )
    sizes = equal_sizes(n_columns, n_domains)
    if rest == "last":
        sizes = torch.full((n_domains,), n_columns // n_domains)
        sizes[-1] += n_columns % n_domains
    shuffled = torch.argsort(key.fold("uniform").bits(torch.arange(n_columns)))
    of_column = torch.empty_like(shuffled)
    of_column[shuffled] = torch.repeat_interleave(sizes)
    return Partition(of_column, tuple(f"domain {number + 1}" for number in range(n_domains)))


def by_genre(genres: Sequence[Sequence[str]], key: Key, needed: Tensor | None = None) -> Partition:
    """Make a domain of each of `GENRES` that occurs, each item in one of its own, drawn uniformly.

    An item without a genre goes to any domain. An item's draw depends on the key and its number
    alone. All items are drawn anew until each domain has what it needs.

    Args:
        genres: names of the genres of each item; only `GENRES` count.
        key: of the draws.
        needed: ``(n_items, P)`` counts of the cells of each item, of which each domain must have
            at least one in each of the P columns (train and test cells, see `count_parts`); None
            for one item a domain.

    Raises:
        UserError: no item has one of the genres, or in 1,000 draws a domain stayed without items
            or cells.

    Example:
        >>> by_genre([["War"], ["unknown", "Crime"]], Key.from_seed(0))
        Partition(of_column=tensor([1, 0]), names=('Crime', 'War'))
    """
    table = genre_table(genres)
    occurs = table.any(0)
    if not bool(occurs.any()):
        raise UserError(f"no item has one of the genres {', '.join(GENRES)}: choose another set")
    table = table[:, occurs]
    names = tuple(name for name, there in zip(GENRES, occurs.tolist(), strict=True) if there)
    table[table.sum(1) == 0] = 1.0
    number = table.cumsum(1).long()  # of a genre among the item's own, from 1
    items = torch.arange(len(genres))
    needed = torch.ones(len(genres), 1) if needed is None else needed
    for attempt in range(_DRAWS):
        drawn = key.fold("genre", attempt).integers(number[:, -1], items)
        of_item = (number <= drawn[:, None]).sum(1)
        held = torch.zeros(len(names), needed.shape[1], dtype=needed.dtype)
        short = held.index_add_(0, of_item, needed).amin(1) < 1
        if not bool(short.any()):
            return Partition(of_item, names)
    name = names[int(short.long().argmax())]
    raise UserError(
        f"in {_DRAWS} draws of a genre for each item domain '{name}' stayed without ratings to "
        "train on and to test: choose a larger data set, or the uniform partition"
    )


def by_source(domains: Sequence[str] | None, source: str) -> Partition:
    """Give each item to the organisation that the data name; domains in order of their names.

    Raises:
        UserError: the data name none.

    Example:
        >>> by_source(["movie", "book", "movie"], "three items").of_column.tolist()
        [1, 0, 1]
    """
    if domains is None:
        raise UserError(
            f"{source} does not say which organisation has which item: choose another partition, "
            "or name the column of a file of yours by --data.columns domain=COLUMN"
        )
    names = sorted(set(domains))
    number = {name: place for place, name in enumerate(names)}
    return Partition(torch.tensor([number[name] for name in domains]), tuple(names))


def count_parts(columns: Tensor, part: Tensor, parts: Sequence[int], n_columns: int) -> Tensor:
    """Count the cells of each column in some parts of a split.

    Args:
        columns: ``(n,)`` int64 column of every cell.
        part: ``(n,)`` int64 part of every cell.
        parts: those to count.
        n_columns: number of columns.

    Returns:
        ``(n_columns, P)`` int64.
    """
    counts = [torch.bincount(columns[part == one], minlength=n_columns) for one in parts]
    return torch.stack(counts, 1)


# Which rated cells are to train on, to choose by, to report; which rows domains have in common.


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
