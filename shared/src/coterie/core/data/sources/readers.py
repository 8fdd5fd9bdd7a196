"""Readers of the official layouts; every file may also be gzipped.

A rating above 0 counts as one interaction (implicit feedback); rows rated 0 or less are dropped,
unless ratings are what is predicted.
Where the source has tag assignments, an interaction is a distinct (user, item, timestamp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from coterie.core.data.interactions.features import (
    AGE_ENDS,
    GENDERS,
    GENRES,
    OCCUPATIONS_1M,
    OCCUPATIONS_100K,
    canonical,
    profiles,
)
from coterie.core.data.interactions.interactions import Dropped, Features, Interactions
from coterie.core.data.sources.tables import Table, read_table
from coterie.core.data.sources.text_files import Layout
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import DATA_SETS, find_file
from coterie.core.tensors.ordering import by_first_appearance


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


_RATINGS = ("user", "item", "rating", "time")
_GENRES_100K = ("unknown", *GENRES)
_FILM_COLUMNS = (
    "id title imdbID spanishTitle imdbPictureURL year rtID rtAllCriticsRating "
    "rtAllCriticsNumReviews rtAllCriticsNumFresh rtAllCriticsNumRotten rtAllCriticsScore "
    "rtTopCriticsRating rtTopCriticsNumReviews rtTopCriticsNumFresh rtTopCriticsNumRotten "
    "rtTopCriticsScore rtAudienceRating rtAudienceNumRatings rtAudienceScore rtPictureURL"
)

Titles = dict[str, str]
Genres = dict[str, list[str]]


def read_ml_100k(folder: Path) -> Interactions:
    """Read MovieLens 100K: ``u.data`` and, if there, ``u.item`` (latin-1) and ``u.user``."""
    titles, genres = None, None
    if items := find_file(folder, "u.item"):
        columns = ("item", "title", "release", "video", "url", *_GENRES_100K)
        side = read_table(items, Layout(columns, separator="|", encoding="latin-1"))
        flags = np.stack([side.integers(genre) for genre in _GENRES_100K], axis=1)
        titles = by_id(side, "title")
        rows = ([_GENRES_100K[g] for g in np.flatnonzero(row)] for row in flags)
        genres = dict(zip(ids_of(side, "item"), rows, strict=True))
    layout = Layout(_RATINGS, whole_lines=True)
    found = _of_ratings(folder, "ml-100k", layout, titles, genres)
    return replace(found, user_features=profiles_100k(folder, found.user_names))


def read_ml_latest_small(folder: Path) -> Interactions:
    """Read MovieLens latest-small: ``ratings.csv`` and, if there, ``movies.csv``."""
    columns = ("userId", "movieId", "rating", "timestamp")
    layout = Layout(columns, ",", header=True, whole_lines=True)
    films = Layout(("movieId", "title", "genres"), ",", header=True, quoted=True)
    return _of_ratings(folder, "ml-latest-small", layout, *_films(folder, "movies.csv", films))


def read_ml_1m(folder: Path) -> Interactions:
    """Read MovieLens 1M: ``ratings.dat``; if there, ``movies.dat`` (latin-1) and ``users.dat``."""
    films = Layout(("item", "title", "genres"), "::", encoding="latin-1")
    layout = Layout(_RATINGS, "::", whole_lines=True)
    found = _of_ratings(folder, "ml-1m", layout, *_films(folder, "movies.dat", films))
    return replace(found, user_features=profiles_1m(folder, found.user_names))


def read_ml_10m(folder: Path) -> Interactions:
    """Read MovieLens 10M, half stars: ``ratings.dat`` and, if there, ``movies.dat`` (UTF-8).

    Its genre ``Children`` is the ``Children's`` of the older sets, and is called so.
    """
    layout = Layout(_RATINGS, "::", whole_lines=True)
    titles, genres = _films(folder, "movies.dat", Layout(("item", "title", "genres"), "::"))
    if genres is not None:
        genres = {film: [canonical(genre) for genre in row] for film, row in genres.items()}
    return _of_ratings(folder, "ml-10m", layout, titles, genres)


def read_lastfm_2k(folder: Path) -> Interactions:
    """Read HetRec 2011 Last.fm: ``user_taggedartists-timestamps.dat`` and ``artists.dat``."""
    path = needed(folder, "lastfm-2k")
    columns = ("userID", "artistID", "tagID", "timestamp")
    table = read_table(path, Layout(columns, header=True, whole_lines=True))
    titles = None
    if artists := find_file(folder, "artists.dat"):
        layout = Layout(("id", "name", "url", "pictureURL"), header=True)
        titles = by_id(read_table(artists, layout), "name")
    return _of_tags(table, titles, None, f"lastfm-2k ({path.name})")


def read_hetrec_movielens(folder: Path) -> Interactions:
    """Read HetRec 2011 MovieLens: ratings where there, else tag assignments.

    Tag assignments are read from ``user_taggedmovies-timestamps.dat`` or
    ``user_taggedmovies.dat``, with or without a header line; `source` says what was used.
    """
    name = "hetrec2011-movielens"
    path, (titles, genres) = needed(folder, name), _hetrec_films(folder)
    if path.name.startswith("user_rated"):
        columns = ("userID", "movieID", "rating", "timestamp")
        layout = Layout(columns, header=True, whole_lines=True)
        return _of_ratings(folder, name, layout, titles, genres, "ratings, ")
    table = _with_or_without_header(path, ("userID", "movieID", "tagID", "timestamp"))
    source = f"{name} (tag assignments, {path.name}; no ratings file is there)"
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
    targets: bool = False,
    dropped: tuple[Dropped, ...] = (),
) -> Interactions:
    """Number users and items by first appearance, in file order.

    Args:
        user: ``(n,)`` original ids, whole numbers or text, or text that is dictionary-encoded.
        item: ``(n,)`` original ids.
        time: ``(n,)`` int64.
        rating: ``(n,)`` or None; rows with ``rating <= 0`` are dropped, but for `targets`.
        titles: title by original item id; an item without one is called by its id.
        genres: genres by original item id.
        source: for messages.
        split: ``(n,)`` int64, the part of every row, or None.
        positions: the times are positions among a user's own rows.
        targets: ratings are what is predicted, so those of 0 or less count as well.
        dropped: what the reader left out.

    Raises:
        UserError: if no row is left.
    """
    unrated = np.zeros(0, bool)
    if rating is not None and not targets:
        unrated = ~(rating > 0)
    if not len(time) or (len(unrated) and unrated.all()):
        raise UserError(f"{source} has no interaction with a rating above 0: check the file")
    user_number, users = _numbered(user)
    item_number, names = _numbered(item)
    found = Interactions(
        user=user_number,
        item=item_number,
        time=torch.from_numpy(time),
        rating=None if rating is None else torch.from_numpy(rating.astype(np.float32)),
        user_names=users,
        item_names=names,
        titles=None if titles is None else [titles.get(name) or name for name in names],
        genres=None if genres is None else [genres.get(name, []) for name in names],
        source=source,
        split=None if split is None else torch.from_numpy(split),
        positions=positions,
        dropped=dropped,
    )
    if not unrated.any():
        return found
    return found.without(torch.from_numpy(unrated), "rated 0 or less").renumbered()


def codes_of(coded: pa.DictionaryArray) -> torch.Tensor:
    """Codes of text that is dictionary-encoded, ``(n,)`` int32, in its own memory: read only."""
    codes = coded.indices
    place = codes.offset * torch.int32.itemsize
    return torch.frombuffer(codes.buffers()[1], dtype=torch.int32, count=len(codes), offset=place)


def needed(folder: Path, name: str, *files: str) -> Path:
    """Find a file of a data set by alternative names; default are those of its interactions.

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


def by_id(table: Table, column: str) -> dict[str, str]:
    """Read a column of text by the ids in the first one."""
    return dict(zip(ids_of(table, table.names[0]), table.strings(column), strict=True))


def _of_ratings(
    folder: Path,
    name: str,
    layout: Layout,
    titles: Titles | None,
    genres: Genres | None,
    what: str = "",
) -> Interactions:
    """Read a file of users, items, ratings and times, in this order."""
    path = needed(folder, name)
    user, item, rating, time = layout.columns
    table = read_table(path, layout, repeated=(rating,), numbers=(user, item, time))
    return build(
        table.integers(user),
        table.integers(item),
        table.integers(time),
        table.numbers(rating),
        titles,
        genres,
        f"{name} ({what}{path.name})",
    )


def _of_tags(
    table: Table, titles: Titles | None, genres: Genres | None, source: str
) -> Interactions:
    user, item, _, time = (table.integers(column) for column in table.names)
    rows = np.stack([user, item, time], axis=1)
    first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    again = Dropped("further tags of an item at the same time", len(rows) - len(first), len(rows))
    return build(
        user[first], item[first], time[first], None, titles, genres, source, dropped=(again,)
    )


def _numbered(ids: np.ndarray | pa.Array) -> tuple[torch.Tensor, list[str]]:
    """Number of every row by first appearance, ``(n,)`` int64, and the name of every one."""
    coded = pa.array(ids).dictionary_encode()  # what is encoded stays as it is
    number, words = by_first_appearance(codes_of(coded), len(coded.dictionary))
    return number, coded.dictionary.take(pa.array(words.numpy())).cast(pa.string()).to_pylist()


def _films(folder: Path, file: str, layout: Layout) -> tuple[Titles | None, Genres | None]:
    """Titles and genres by id; None where the file is not there."""
    path = find_file(folder, file)
    if path is None:
        return None, None
    table = read_table(path, layout)
    genres = by_id(table, "genres").items()
    found = {name: [] if row == "(no genres listed)" else row.split("|") for name, row in genres}
    return by_id(table, "title"), found


def _hetrec_films(folder: Path) -> tuple[Titles | None, Genres | None]:
    titles: Titles | None = None
    genres: Genres | None = None
    if path := find_file(folder, "movies.dat"):
        titles = by_id(
            _with_or_without_header(path, tuple(_FILM_COLUMNS.split()), "latin-1"), "title"
        )
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
