"""The data sets that this paper adds to those of core. Torch-free."""

from __future__ import annotations

from coterie.core.registry.data_sets import DataSet

_SITE = "https://cseweb.ucsd.edu/~jmcauley/datasets/amazon_v2/"
_READER = "coterie.llm.data.amazon:"
# The files come 5-core; PPLR filters no further, though some items have no title.

AMAZON_2018 = (
    DataSet(
        name="amazon-games",
        about="Amazon reviews of Video_Games, 1999-2018, 5-core, with titles, brands, categories",
        terms="research use",
        core=0,
        files=("Video_Games_5.json",),
        reader=_READER + "read_games",
        by_hand=f"get it and meta_Video_Games.json.gz from {_SITE}",
    ),
    DataSet(
        name="amazon-books",
        about="Amazon reviews of Books, 1996-2018, 5-core, with titles, brands, categories",
        terms="research use",
        core=0,
        files=("Books_5.json",),
        reader=_READER + "read_books",
        by_hand=f"get it and meta_Books.json.gz from {_SITE}",
    ),
)
