"""What is known of items and users, as columns of numbers: the genres and profiles of MovieLens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.data.interactions.interactions import Features

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


# Profiles of users: age, gender and occupation as 30 columns of ones and zeros.
#
# The columns are, in this order: seven age groups, ``F`` and ``M``, 21 occupations. The two
# MovieLens sets with profiles ask for different occupations, each for 21: the last columns are
# those of the set (`OCCUPATIONS_100K` in alphabetic order, `OCCUPATIONS_1M` in the order of their
# codes), and `Features.names` says which.

AGE_ENDS = (18, 25, 35, 45, 50, 56)  # of all groups but the last
AGES = ("0-17", "18-24", "25-34", "35-44", "45-49", "50-55", "56+")
GENDERS = ("F", "M")
OCCUPATIONS_100K = (
    *("administrator", "artist", "doctor", "educator", "engineer", "entertainment", "executive"),
    *("healthcare", "homemaker", "lawyer", "librarian", "marketing", "none", "other"),
    *("programmer", "retired", "salesman", "scientist", "student", "technician", "writer"),
)
OCCUPATIONS_1M = (
    *("other", "academic/educator", "artist", "clerical/admin", "college/grad student"),
    *("customer service", "doctor/health care", "executive/managerial", "farmer", "homemaker"),
    *("K-12 student", "lawyer", "programmer", "retired", "sales/marketing", "scientist"),
    *("self-employed", "technician/engineer", "tradesman/craftsman", "unemployed", "writer"),
)


def profiles(numbers: Sequence[Tensor], occupations: Sequence[str]) -> Features:
    """Make profiles of numbers.

    Args:
        numbers: of age groups, genders and occupations, each ``(n,)`` int64.
        occupations: names of the occupations.

    Example:
        >>> found = profiles([torch.tensor([n]) for n in (6, 0, 20)], OCCUPATIONS_1M)
        >>> [found.names[column] for column in found.values[0].nonzero()]
        ['age 56+', 'gender F', 'occupation writer']
    """
    words = (AGES, GENDERS, occupations)
    parts = [one_hot(n, len(names)) for n, names in zip(numbers, words, strict=True)]
    kinds = zip(("age", "gender", "occupation"), words, strict=True)
    columns = [f"{kind} {name}" for kind, names in kinds for name in names]
    return Features(torch.cat(parts, 1).float(), columns)
