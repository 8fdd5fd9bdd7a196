"""Readers of reviews and shops: Amazon, Douban, MicroLens; every file may also be gzipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Dropped, Interactions
from coterie.core.data.sources.json_lines import cached_json_lines
from coterie.core.data.sources.own_file import (
    check_positions,
    domain_column,
    in_domains,
    parts_of,
    read_columns,
    with_domains,
)
from coterie.core.data.sources.readers import build, by_id, ids_of, needed
from coterie.core.data.sources.tables import Table, read_table
from coterie.core.data.sources.text_files import Layout, located, read_text
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import find_file

_REVIEWS = pa.schema(
    [
        pa.field("reviewerID", pa.string(), nullable=False),
        pa.field("asin", pa.string(), nullable=False),
        pa.field("overall", pa.float64(), nullable=False),
        pa.field("unixReviewTime", pa.int64(), nullable=False),
    ]
)
_METADATA = pa.schema(
    [
        pa.field("asin", pa.string(), nullable=False),
        pa.field("title", pa.string()),
        pa.field("brand", pa.string()),
        pa.field("category", pa.list_(pa.string())),
    ]
)
# The owners' page names this word as the mark of titles that are scraps of a web page.
_SCRAP = "getTime"


def read_games(folder: Path) -> Interactions:
    """Read ``Video_Games_5.json`` and ``meta_Video_Games.json``."""
    return read_amazon(folder, "Video_Games", "amazon-games")


def read_books(folder: Path) -> Interactions:
    """Read ``Books_5.json`` and ``meta_Books.json``."""
    return read_amazon(folder, "Books", "amazon-books")


def read_amazon(folder: Path, category: str, name: str) -> Interactions:
    """Read the ratings of items that have a title; genres are the categories.

    Args:
        folder: holds ``<category>_5.json`` and ``meta_<category>.json``, each also as ``.gz``.
        category: in the owners' spelling.
        name: of the data set.

    Raises:
        UserError: if a file is missing or malformed, or nothing is left.
    """
    paths = [
        needed(folder, name, f"{category}_5.json"),
        needed(folder, name, f"meta_{category}.json"),
    ]
    reviews = cached_json_lines(paths[0], _REVIEWS)
    items = _titled(cached_json_lines(paths[1], _METADATA), reviews["asin"])
    dropped = []
    for why, kept in (
        ("of items without a title", _among(items["asin"])),
        ("rated 0 or less", lambda rows: pc.greater(rows["overall"], 0.0)),
    ):
        before, reviews = len(reviews), reviews.filter(kept(reviews))
        dropped.append(Dropped(why, before - len(reviews), before))
    if not len(reviews):
        raise UserError(
            f"{paths[0]} has no rating of an item with a title in {paths[1].name}: "
            "check that the files belong together"
        )
    user, users = _numbered(reviews["reviewerID"])
    item, asins = _numbered(reviews["asin"])
    # The first line of an item that has several.
    place = pc.index_in(pa.array(asins), value_set=items["asin"].combine_chunks())
    items = items.take(place)
    return Interactions(
        user=user,
        item=item,
        time=_tensor(reviews["unixReviewTime"]),
        rating=_tensor(reviews["overall"]).float(),
        user_names=users,
        item_names=asins,
        titles=pc.utf8_trim_whitespace(items["title"]).to_pylist(),
        genres=[[word for word in words or [] if word] for words in items["category"].to_pylist()],
        source=f"{name} ({paths[0].name})",
        brands=pc.fill_null(items["brand"], "").to_pylist(),
        dropped=tuple(dropped),
    )


def _among(items: pa.ChunkedArray) -> Callable[[pa.Table], pa.ChunkedArray]:
    """Tell which reviews are of some items."""
    known = items.combine_chunks()
    return lambda reviews: pc.is_in(reviews["asin"], value_set=known)


def _titled(items: pa.Table, wanted: pa.ChunkedArray) -> pa.Table:
    """Items with a readable title that are among ``wanted``."""
    items = items.filter(pc.is_in(items["asin"], value_set=wanted.unique()))
    title = pc.utf8_trim_whitespace(pc.fill_null(items["title"], ""))
    scrap = pc.match_substring(title, _SCRAP)
    return items.filter(pc.and_(pc.not_equal(title, ""), pc.invert(scrap)))


def _numbered(names: pa.ChunkedArray) -> tuple[Tensor, list[str]]:
    """Number names by first appearance: ``(n,)`` int64, and the name of every number."""
    coded = names.combine_chunks().dictionary_encode()
    return _tensor(coded.indices.cast(pa.int64())), coded.dictionary.to_pylist()


def _tensor(column: pa.Array | pa.ChunkedArray) -> Tensor:
    return torch.from_numpy(np.array(column.to_numpy()))


# Readers of sets whose items belong to several organisations; every file may also be gzipped.

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


# Readers of sets whose items are known by their titles; every file may also be gzipped.


def read_amazon_titles(folder: Path) -> Interactions:
    """Read Amazon Industrial_and_Scientific with its own split, which is all it knows of time.

    Files: ``Industrial_and_Scientific.interactions.csv`` and, for the brands,
    ``Industrial_and_Scientific.item.json``. A user's position takes the place of the time.

    Raises:
        UserError: also where a user's positions repeat, or a later one is of an earlier part.
    """
    path = needed(folder, "amazon-titles")
    columns = ("user_id", "item_id", "position", "split", "title")
    table = read_table(path, Layout(columns, ",", header=True, quoted=True, whole_lines=True))
    position, item = table.integers("position"), ids_of(table, "item_id")
    user, part = table.coded("user_id", blank=True), parts_of(table, "split")
    check_positions(table, user, position, part)
    titles = dict(zip(reversed(item), reversed(table.strings("title")), strict=True))
    source = f"amazon-titles ({path.name})"
    found = build(
        user, pa.array(item), position, None, titles, None, source, split=part, positions=True
    )
    brands = _brands(folder)
    if brands is None:
        return found
    return replace(found, brands=[brands.get(name, "") for name in found.item_names])


def read_microlens(folder: Path) -> Interactions:
    """Read MicroLens-50k: ``MicroLens-50k_pairs.csv`` and, if there, ``MicroLens-50k_titles.csv``.

    The ``.tsv`` form of the pairs has no times and is not read.
    """
    path = needed(folder, "microlens")
    layout = Layout(("user", "item", "timestamp"), ",", header=True, whole_lines=True)
    table = read_table(path, layout)
    titles = None
    if side := find_file(folder, "MicroLens-50k_titles.csv"):
        names = read_table(side, Layout(("item", "title"), ",", header=True, quoted=True))
        titles = by_id(names, "title")
    return build(
        table.integers("user"),
        table.integers("item"),
        table.integers("timestamp"),
        None,
        titles,
        None,
        f"microlens ({path.name})",
    )


def _brands(folder: Path) -> dict[str, str] | None:
    """Brand by item id, of a JSON object of objects."""
    path = find_file(folder, "Industrial_and_Scientific.item.json")
    if path is None:
        return None
    layout = Layout(())
    try:
        items = json.loads(read_text(path, layout))
    except json.JSONDecodeError as error:
        raise located(path, error.lineno, error.msg, layout.remedy) from None
    except RecursionError:
        raise UserError(f"{path} is no table of items (too deep): {layout.remedy}") from None
    if not isinstance(items, dict) or not all(isinstance(item, dict) for item in items.values()):
        raise UserError(f"{path} is no JSON object of items by id: {layout.remedy}")
    return {name: str(item.get("brand") or "") for name, item in items.items()}
