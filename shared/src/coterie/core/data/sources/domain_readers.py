"""Readers of sets whose items belong to several organisations; every file may also be gzipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.item_domains import domain_column, in_domains, with_domains
from coterie.core.data.sources.own_file import read_columns
from coterie.core.data.sources.readers import build, needed
from coterie.core.data.sources.tables import Table, read_table
from coterie.core.data.sources.text_files import Layout, located
from coterie.core.registry.data_sets import find_file

_CATEGORIES = ("Books", "Digital_Music", "Movies_and_TV", "Video_Games")
_ASIN = 10  # characters of an item's id
_REMEDY = "fetch the file again"
_Part = tuple[pa.DictionaryArray, pa.DictionaryArray, np.ndarray, np.ndarray]
"""Users, items, times and ratings of some rows."""


def read_amazon_domains(folder: Path) -> Interactions:
    """Read ratings of four categories: ``Books.csv``, ``Digital_Music.csv``, ….

    The files of 2018 have the columns item, user, rating, timestamp and no header; those of 2014
    (``ratings_Books.csv``) begin with the user. Items are told by their ids of ten characters.

    Raises:
        UserError: a file is missing or malformed.
    """
    parts: list[_Part] = []
    for category in _CATEGORIES:
        path = needed(folder, "amazon-domains", f"{category}.csv", f"ratings_{category}.csv")
        layout = Layout(("item", "user", "rating", "time"), ",", whole_lines=True)
        table = read_table(path, layout, repeated=layout.columns[:3], numbers=("time",))
        item, user = ("user", "item") if _user_first(table) else ("item", "user")
        ids = table.coded(user), in_domains(category, table.coded(item))
        parts.append((*ids, table.integers("time"), table.numbers("rating")))
    return _joined(parts, "amazon-domains")


def read_douban(folder: Path) -> Interactions:
    """Read ratings of books, films and music.

    Either the three files of the official set, ``bookreviews_cleaned.txt`` and so on (a header
    line, tabs), without times; or one table of all, ``douban.csv`` or ``douban_sample.csv``, with
    the columns user_id, item_id, rating and domain. Ratings of 0 are dropped, as everywhere: of a
    table of likes, 0 or 1, the likes are left.

    Raises:
        UserError: a file is missing or malformed.
    """
    if path := find_file(folder, "douban.csv", "douban_sample.csv"):
        table = _with_columns(path, "user_id", "item_id", "rating", "domain")
        domain = domain_column(table, "domain")
        items = in_domains(domain, table.coded("item_id"))
        part = table.coded("user_id"), items, _untimed(table), table.numbers("rating")
        return _joined([part], f"douban ({path.name})")
    parts: list[_Part] = []
    for domain in ("book", "movie", "music"):
        path = needed(folder, "douban", f"{domain}reviews_cleaned.txt")
        table = _with_columns(path, "user_id", f"{domain}_id", "rating")
        ids = table.coded("user_id"), in_domains(domain, table.coded(f"{domain}_id"))
        parts.append((*ids, _untimed(table), table.numbers("rating")))
    return _joined(parts, "douban")


def _joined(parts: list[_Part], source: str) -> Interactions:
    """Interactions of all parts, one after the other; users are the same in all."""
    users, items, times, ratings = zip(*parts, strict=True)
    user, item = (
        pa.chunked_array(ids).unify_dictionaries().combine_chunks() for ids in (users, items)
    )
    time, rating = np.concatenate(times), np.concatenate(ratings)
    return with_domains(build(user, item, time, rating, None, None, source))


def _untimed(table: Table) -> np.ndarray:
    return np.zeros(len(table), np.int64)


def _user_first(table: Table) -> bool:
    """Tell a file whose second column, not the first, has an item's ten characters everywhere."""
    first, second = (
        pc.equal(pc.utf8_length(table.coded(column, blank=True).dictionary), _ASIN)
        for column in ("item", "user")
    )
    return not pc.all(first).as_py() and bool(pc.all(second).as_py())


def _with_columns(path: Path, *columns: str) -> Table:
    """Read some columns of a file with a header line."""
    table = read_columns(path, columns, remedy=_REMEDY, repeated=columns)
    for column in columns:
        if column not in table.names:
            raise located(path, 1, f"there is no column '{column}'", _REMEDY)
    return table
