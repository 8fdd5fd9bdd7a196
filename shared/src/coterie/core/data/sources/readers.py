"""Readers of the official layouts; every file may also be gzipped.

A rating above 0 counts as one interaction (implicit feedback); rows rated 0 or less are dropped.
Where the source has tag assignments, an interaction is a distinct (user, item, timestamp).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.tables import Layout, Table, read_table
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import DATA_SETS, find_file

_RATINGS = ("user", "item", "rating", "time")
_GENRE_COLUMNS = (
    "unknown|Action|Adventure|Animation|Children's|Comedy|Crime|Documentary|Drama|Fantasy|"
    "Film-Noir|Horror|Musical|Mystery|Romance|Sci-Fi|Thriller|War|Western"
)
_GENRES_100K = _GENRE_COLUMNS.split("|")
_FILM_COLUMNS = (
    "id title imdbID spanishTitle imdbPictureURL year rtID rtAllCriticsRating "
    "rtAllCriticsNumReviews rtAllCriticsNumFresh rtAllCriticsNumRotten rtAllCriticsScore "
    "rtTopCriticsRating rtTopCriticsNumReviews rtTopCriticsNumFresh rtTopCriticsNumRotten "
    "rtTopCriticsScore rtAudienceRating rtAudienceNumRatings rtAudienceScore rtPictureURL"
)

Titles = dict[str, str]
Genres = dict[str, list[str]]


def read_ml_100k(folder: Path) -> Interactions:
    """Read MovieLens 100K: ``u.data`` and, if there, ``u.item`` (latin-1)."""
    path = needed(folder, "ml-100k")
    table = read_table(path, Layout(_RATINGS, whole_lines=True))
    titles, genres = None, None
    if items := find_file(folder, "u.item"):
        columns = ("item", "title", "release", "video", "url", *_GENRES_100K)
        side = read_table(items, Layout(columns, separator="|", encoding="latin-1"))
        ids = ids_of(side, "item")
        flags = np.stack([side.integers(genre) for genre in _GENRES_100K], axis=1)
        titles = dict(zip(ids, side.strings("title"), strict=True))
        genres = {
            name: [_GENRES_100K[g] for g in np.flatnonzero(row)]
            for name, row in zip(ids, flags, strict=True)
        }
    return _of_ratings(table, titles, genres, f"ml-100k ({path.name})")


def read_ml_latest_small(folder: Path) -> Interactions:
    """Read MovieLens latest-small: ``ratings.csv`` and, if there, ``movies.csv``."""
    path = needed(folder, "ml-latest-small")
    layout = Layout(
        ("userId", "movieId", "rating", "timestamp"), ",", header=True, whole_lines=True
    )
    table = read_table(path, layout)
    titles, genres = None, None
    if movies := find_file(folder, "movies.csv"):
        layout = Layout(("movieId", "title", "genres"), ",", header=True, quoted=True)
        titles, genres = _titles_and_genres(read_table(movies, layout), "movieId")
    names = dict(zip(table.names, _RATINGS, strict=True))
    return _of_ratings(table, titles, genres, f"ml-latest-small ({path.name})", names)


def read_ml_1m(folder: Path) -> Interactions:
    """Read MovieLens 1M: ``ratings.dat`` and, if there, ``movies.dat`` (latin-1)."""
    path = needed(folder, "ml-1m")
    table = read_table(path, Layout(_RATINGS, "::", whole_lines=True))
    titles, genres = None, None
    if movies := find_file(folder, "movies.dat"):
        layout = Layout(("item", "title", "genres"), "::", encoding="latin-1")
        titles, genres = _titles_and_genres(read_table(movies, layout), "item")
    return _of_ratings(table, titles, genres, f"ml-1m ({path.name})")


def read_lastfm_2k(folder: Path) -> Interactions:
    """Read HetRec 2011 Last.fm: ``user_taggedartists-timestamps.dat`` and ``artists.dat``."""
    path = needed(folder, "lastfm-2k")
    columns = ("userID", "artistID", "tagID", "timestamp")
    table = read_table(path, Layout(columns, header=True, whole_lines=True))
    titles = None
    if artists := find_file(folder, "artists.dat"):
        layout = Layout(("id", "name", "url", "pictureURL"), header=True)
        side = read_table(artists, layout)
        titles = dict(zip(ids_of(side, "id"), side.strings("name"), strict=True))
    return _of_tags(table, titles, None, f"lastfm-2k ({path.name})")


def read_hetrec_movielens(folder: Path) -> Interactions:
    """Read HetRec 2011 MovieLens: ratings where there, else tag assignments.

    Tag assignments are read from ``user_taggedmovies-timestamps.dat`` or
    ``user_taggedmovies.dat``, with or without a header line; `source` says what was used.
    """
    path = needed(folder, "hetrec2011-movielens")
    titles, genres = _hetrec_films(folder)
    if path.name.startswith("user_rated"):
        columns = ("userID", "movieID", "rating", "timestamp")
        table = read_table(path, Layout(columns, header=True, whole_lines=True))
        names = dict(zip(columns, _RATINGS, strict=True))
        source = f"hetrec2011-movielens (ratings, {path.name})"
        return _of_ratings(table, titles, genres, source, names)
    columns = ("userID", "movieID", "tagID", "timestamp")
    table = _with_or_without_header(path, columns)
    source = f"hetrec2011-movielens (tag assignments, {path.name}; no ratings file is there)"
    return _of_tags(table, titles, genres, source)


def build(
    user: np.ndarray | pa.Array,
    item: np.ndarray | pa.Array,
    time: np.ndarray,
    rating: np.ndarray | None,
    titles: Titles | None,
    genres: Genres | None,
    source: str,
    *,
    split: np.ndarray | None = None,
    positions: bool = False,
) -> Interactions:
    """Number users and items by first appearance, in file order.

    Args:
        user: ``(n,)`` original ids, whole numbers or text.
        item: ``(n,)`` original ids.
        time: ``(n,)`` int64.
        rating: ``(n,)`` or None; rows with ``rating <= 0`` are dropped.
        titles: title by original item id; an item without one is called by its id.
        genres: genres by original item id.
        source: for messages.
        split: ``(n,)`` int64, the part of every row, or None.
        positions: the times are positions among a user's own rows.

    Raises:
        UserError: if no row is left.
    """
    kept = np.arange(len(time)) if rating is None else np.flatnonzero(rating > 0)
    if not len(kept):
        raise UserError(f"{source} has no interaction with a rating above 0: check the file")
    user_number, users = _numbered(user, kept)
    item_number, names = _numbered(item, kept)
    return Interactions(
        user=user_number,
        item=item_number,
        time=torch.from_numpy(time[kept]),
        rating=None if rating is None else torch.from_numpy(rating[kept].astype(np.float32)),
        user_names=users,
        item_names=names,
        titles=None if titles is None else [titles.get(name) or name for name in names],
        genres=None if genres is None else [genres.get(name, []) for name in names],
        source=source,
        split=None if split is None else torch.from_numpy(split[kept]),
        positions=positions,
    )


def needed(folder: Path, name: str, *files: str) -> Path:
    """Find a file of a data set.

    Args:
        folder: of the data set.
        name: of the data set.
        files: alternative names; default are those of its interactions.

    Raises:
        UserError: if it is not there.
    """
    files = files or DATA_SETS[name].files
    path = find_file(folder, *files)
    if path is None:
        raise UserError(
            f"{folder} has no {' or '.join(files)} (nor .gz): put the file of {name} there"
        )
    return path


def ids_of(table: Table, column: str) -> list[str]:
    """Read a column of whole numbers as the names they are."""
    return [str(number) for number in table.integers(column).tolist()]


def _of_ratings(
    table: Table,
    titles: Titles | None,
    genres: Genres | None,
    source: str,
    names: dict[str, str] | None = None,
) -> Interactions:
    column = {role: original for original, role in (names or {}).items()}
    return build(
        table.integers(column.get("user", "user")),
        table.integers(column.get("item", "item")),
        table.integers(column.get("time", "time")),
        table.numbers(column.get("rating", "rating")),
        titles,
        genres,
        source,
    )


def _of_tags(
    table: Table, titles: Titles | None, genres: Genres | None, source: str
) -> Interactions:
    user, item, _, time = (table.integers(column) for column in table.names)
    rows = np.stack([user, item, time], axis=1)
    first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    return build(user[first], item[first], time[first], None, titles, genres, source)


def _numbered(ids: np.ndarray | pa.Array, kept: np.ndarray) -> tuple[torch.Tensor, list[str]]:
    """Number of every kept row by first appearance, ``(m,)`` int64, and the name of every one."""
    coded = pa.array(ids).take(pa.array(kept)).dictionary_encode()
    number = np.array(coded.indices.to_numpy(), dtype=np.int64)
    return torch.from_numpy(number), coded.dictionary.cast(pa.string()).to_pylist()


def _titles_and_genres(table: Table, key: str) -> tuple[Titles, Genres]:
    ids = ids_of(table, key)
    genres = [
        [] if field == "(no genres listed)" else field.split("|")
        for field in table.strings("genres")
    ]
    return dict(zip(ids, table.strings("title"), strict=True)), dict(zip(ids, genres, strict=True))


def _hetrec_films(folder: Path) -> tuple[Titles | None, Genres | None]:
    titles: Titles | None = None
    genres: Genres | None = None
    if path := find_file(folder, "movies.dat"):
        table = _with_or_without_header(path, tuple(_FILM_COLUMNS.split()), "latin-1")
        titles = dict(zip(ids_of(table, "id"), table.strings("title"), strict=True))
    if path := find_file(folder, "movie_genres.dat"):
        table = _with_or_without_header(path, ("movieID", "genre"))
        genres = {}
        for film, genre in zip(ids_of(table, "movieID"), table.strings("genre"), strict=True):
            genres.setdefault(film, []).append(genre)
    return titles, genres


def _with_or_without_header(
    path: Path, columns: tuple[str, ...], encoding: str = "utf-8-sig"
) -> Table:
    """Read a file that some public copies carry without its header line."""
    layout = Layout(columns, encoding=encoding, whole_lines=True)
    bare = read_table(path, layout)
    if bare.values(columns[0])[0].as_py().strip() != columns[0]:
        return bare
    return read_table(path, Layout(columns, header=True, encoding=encoding, whole_lines=True))
