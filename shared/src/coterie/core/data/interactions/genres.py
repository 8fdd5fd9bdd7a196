"""The eighteen genres of MovieLens, as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GENRES = (
    *("Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary"),
    *("Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi"),
    *("Thriller", "War", "Western"),
)
_NUMBER = {name: number for number, name in enumerate(GENRES)}
# MovieLens 10M and later sets spell it so.
_NUMBER["Children"] = _NUMBER["Children's"]


def genre_table(genres: Sequence[Sequence[str]]) -> Tensor:
    """Which of `GENRES` each item has, ``(n_items, 18)`` float32, 1 or 0.

    Args:
        genres: names of the genres of each item; others than the 18 are left out.

    Example:
        >>> genre_table([["Children", "unknown"], ["War"]]).nonzero().tolist()
        [[0, 3], [1, 16]]
    """
    pairs = [(i, _NUMBER[name]) for i, row in enumerate(genres) for name in row if name in _NUMBER]
    table = torch.zeros(len(genres), len(GENRES))
    item, genre = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    table[item, genre] = 1.0
    return table
