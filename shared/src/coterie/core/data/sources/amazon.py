"""Readers of the official Amazon reviews of 2018: 5-core reviews and metadata, JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from coterie.core.data.interactions.dropped import Dropped
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.json_lines import cached_json_lines
from coterie.core.data.sources.readers import needed
from coterie.core.errors import UserError

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
