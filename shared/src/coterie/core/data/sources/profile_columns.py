"""Profiles of users: age, gender and occupation as 30 columns of ones and zeros.

The columns are, in this order: seven age groups, ``F`` and ``M``, 21 occupations. The two MovieLens
sets with profiles ask for different occupations, each for 21: the last columns are those of the set
(`OCCUPATIONS_100K` in alphabetic order, `OCCUPATIONS_1M` in the order of their codes), and
`Features.names` says which.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.data.interactions.interactions import Features

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
