"""Readers of the profiles of MovieLens users, see `coterie.core.data.sources.profile_columns`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from coterie.core.data.interactions.interactions import Features
from coterie.core.data.sources.profile_columns import (
    AGE_ENDS,
    GENDERS,
    OCCUPATIONS_1M,
    OCCUPATIONS_100K,
    profiles,
)
from coterie.core.data.sources.tables import Table, read_table
from coterie.core.data.sources.text_files import Layout
from coterie.core.registry.data_sets import find_file


def profiles_100k(folder: Path, users: Sequence[str]) -> Features | None:
    """Profiles of users by ``u.user``, whose ages are in years; None where it is not there.

    Args:
        folder: of the data set.
        users: original ids; one that the file does not know has a profile of zeros.

    Raises:
        UserError: naming the file's first malformed line.
    """
    layout = Layout(("user", "age", "gender", "occupation", "zip"), "|", encoding="latin-1")
    return _profiles(folder, "u.user", layout, OCCUPATIONS_100K, OCCUPATIONS_100K, users)


def profiles_1m(folder: Path, users: Sequence[str]) -> Features | None:
    """Profiles of users by ``users.dat``, whose ages are the first years of groups.

    Arguments, return value and errors as of `profiles_100k`.
    """
    layout = Layout(("user", "gender", "age", "occupation", "zip"), "::", encoding="latin-1")
    codes = tuple(str(code) for code in range(len(OCCUPATIONS_1M)))
    return _profiles(folder, "users.dat", layout, codes, OCCUPATIONS_1M, users)


def _profiles(
    folder: Path,
    file: str,
    layout: Layout,
    codes: Sequence[str],
    occupations: Sequence[str],
    users: Sequence[str],
) -> Features | None:
    path = find_file(folder, file)
    if path is None:
        return None
    table = read_table(path, layout)
    occupation = _places(table, "occupation", codes)
    age = np.searchsorted(AGE_ENDS, table.integers("age"), side="right")
    gender = _places(table, "gender", GENDERS)
    known = profiles([torch.as_tensor(n) for n in (age, gender, occupation)], occupations)
    row = {str(number): row for row, number in enumerate(table.integers("user").tolist())}
    place = torch.tensor([row.get(user, -1) for user in users], dtype=torch.int64)
    values = known.values[place]
    values[place < 0] = 0.0
    return Features(values, known.names)


def _places(table: Table, column: str, words: Sequence[str]) -> np.ndarray:
    """Place of every field of a column among some words, ``(n,)`` int64; others are refused."""
    number = {word: place for place, word in enumerate(words)}
    found = table.strings(column)
    places = np.array([number.get(word.strip(), -1) for word in found], dtype=np.int64)
    if (places < 0).any():
        row = int((places < 0).argmax())
        some = f"none of {words[0]}, {words[1]}" + ", …" * (len(words) > 2)
        raise table.fault(row, f"column '{column}' is '{found[row][:40]}', {some}")
    return places
