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
_SPELLINGS = {"Children": "Children's"}


def canonical(genre: str) -> str:
    """Name of a genre as in `GENRES`, where another spelling of one of them is known."""
    return _SPELLINGS.get(genre, genre)


def genre_table(genres: Sequence[Sequence[str]]) -> Tensor:
    """Which of `GENRES` each item has, ``(n_items, 18)`` float32, 1 or 0.

    Args:
        genres: names of the genres of each item; others than the 18 are left out.

    Example:
        >>> genre_table([["Children", "unknown"], ["War"]]).nonzero().tolist()
        [[0, 3], [1, 16]]
    """
    places = [[_NUMBER.get(canonical(name), -1) for name in row] for row in genres]
    pairs = [(item, place) for item, row in enumerate(places) for place in row if place >= 0]
    table = torch.zeros(len(genres), len(GENRES))
    item, genre = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    table[item, genre] = 1.0
    return table
