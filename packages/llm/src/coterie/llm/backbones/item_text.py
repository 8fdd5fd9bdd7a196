"""What an item says of itself, as attributes of text."""

from __future__ import annotations

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.llm.backbones.prompts import plain

Attributes = tuple[tuple[str, str], ...]
"""Names and values of an item's attributes, in RecFormer's order: title, brand, category."""


def item_attributes(interactions: Interactions) -> list[Attributes]:
    """Read the attributes of every item; those without a value are left out.

    Raises:
        UserError: the source has no titles.
    """
    if interactions.titles is None:
        raise UserError(
            f"{interactions.source} has no titles: use backbone tiny-item, or a data set with "
            "titles (for a file of yours, name the column by --data.columns title=COLUMN)"
        )
    n = interactions.n_items
    brands = getattr(interactions, "brands", None) or [""] * n
    genres = interactions.genres or [[]] * n
    categories = [" ".join(names) for names in genres]
    found = zip(interactions.titles, brands, categories, strict=True)
    return [_filled(title, brand, category) for title, brand, category in found]


def _filled(title: str, brand: str | None, category: str) -> Attributes:
    named = (("title", title), ("brand", brand or ""), ("category", category))
    return tuple((name, plain(value)) for name, value in named if plain(value))
