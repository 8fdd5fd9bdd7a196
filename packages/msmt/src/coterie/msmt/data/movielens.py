"""MovieLens 1M as scenarios of users: who liked a film, and who loved it.

A rating of 4 or 5 is ``like``, one of 5 is ``love``, so the tasks are a funnel. A scenario is a
gender (2) or an age group (7); every user is in one of them, and what tells scenarios apart is no
input. Inputs are what is known before the rating: who the user is and of which age, gender,
occupation and region (first digit of the zip code), which film it is, its first genre and its
decade, and all its genres as 18 numbers, 0 or 1. There are no means of ratings, which would have to
leave out the sample itself. Every user's ratings are cut at random: some public copies have no
times.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.data.interactions.features import (
    AGES,
    GENDERS,
    GENRES,
    OCCUPATIONS_1M,
    canonical,
    genre_table,
)
from coterie.core.data.interactions.interactions import Features, Interactions, in_words
from coterie.core.data.sources.readers import needed, read_ml_1m
from coterie.core.data.sources.tables import read_table
from coterie.core.data.sources.text_files import Layout
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.cut import Rows, cut
from coterie.msmt.data.task import Task
from coterie.msmt.settings import ScenarioData

TASKS = {"like": 4.0, "love": 5.0}
"""Least rating of each task."""
_YEAR = re.compile(r"\((\d{4})\)\s*$")
_PROFILE = {"age": AGES, "gender": GENDERS, "occupation": OCCUPATIONS_1M}


def read_movielens(
    folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
) -> Task:
    """Read the ratings, and cut every user's at random; see `coterie.msmt.data.make.READERS`.

    The files are ``ratings.dat``, ``users.dat`` and ``movies.dat``.

    Raises:
        UserError: a file is missing or malformed.
    """
    for name in ("users.dat", "movies.dat"):
        needed(folder, "ml-1m", name)
    found = read_ml_1m(folder)
    assert found.rating is not None
    assert found.genres is not None
    assert found.titles is not None
    scenario = settings.scenario or "gender"
    of_user = _of_users(folder, found)
    of_item = {"first_genre": _first_genres(found.genres), "decade": _decades(found.titles)}
    told = of_user.pop(scenario)[found.user]
    if bool((told < 0).any()):
        user = found.user_names[int(found.user[told < 0][0])]
        raise UserError(f"{folder}: users.dat does not know user {user}: fetch the file again")
    present = told.unique()
    rows = Rows(
        categories={"user": found.user, "item": found.item}
        | {name: codes[found.user] for name, codes in of_user.items()}
        | {name: codes[found.item] for name, codes in of_item.items()},
        numbers=_genre_numbers(found),
        scenario=torch.searchsorted(present, told),
        scenarios=tuple(_PROFILE[scenario][place] for place in present.tolist()),
        labels={name: (found.rating >= least).byte() for name, least in TASKS.items()},
        group=found.user,
        funnel=True,
    )
    name = f"{found.source} by {scenario}"
    notes = [f"rows {line}" for line in in_words(found.dropped)]
    return cut(rows, settings, key, name=name, scaling="range", dtype=dtype, notes=notes)


def _of_users(folder: Path, found: Interactions) -> dict[str, Tensor]:
    """Codes of the profiles of users, each ``(n_users,)`` int64, -1 where not known."""
    assert found.user_features is not None
    known = {name: _chosen(found.user_features, name) for name in _PROFILE}
    return known | {"zip_region": _regions(folder, found.user_names)}


def _chosen(features: Features, kind: str) -> Tensor:
    """Which column of a kind is 1, as a place among them, ``(n,)`` int64; -1 where none is."""
    columns = [place for place, name in enumerate(features.names) if name.startswith(f"{kind} ")]
    values = features.values[:, columns]
    return values.argmax(1).masked_fill(values.sum(1) == 0, -1)


def _regions(folder: Path, users: list[str]) -> Tensor:
    columns = ("user", "gender", "age", "occupation", "zip")
    path = needed(folder, "ml-1m", "users.dat")
    table = read_table(path, Layout(columns, "::", encoding="latin-1"))
    digits = [int(code[0]) if code[:1].isdecimal() else -1 for code in table.strings("zip")]
    of_user = dict(zip(table.integers("user").tolist(), digits, strict=True))
    return torch.tensor([of_user.get(int(user), -1) for user in users])


def _first_genres(genres: list[list[str]]) -> Tensor:
    place = {name: number for number, name in enumerate(GENRES)}
    return torch.tensor([place.get(canonical(row[0]), -1) if row else -1 for row in genres])


def _decades(titles: list[str]) -> Tensor:
    """Decades of release by the years at the titles' ends; -1 where there is none."""
    years = [_YEAR.search(title) for title in titles]
    return torch.tensor([int(year[1]) // 10 if year else -1 for year in years])


def _genre_numbers(found: Interactions) -> dict[str, Tensor]:
    assert found.genres is not None
    table = genre_table(found.genres).double()
    return {name: table[found.item, place] for place, name in enumerate(GENRES)}
