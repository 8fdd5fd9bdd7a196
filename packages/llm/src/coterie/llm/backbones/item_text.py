"""What an item says of itself, as attributes of text."""

from __future__ import annotations

from coterie.llm.backbones.prompts import plain
from coterie.llm.data.catalogue import Catalogue

Attributes = tuple[tuple[str, str], ...]
"""Names and values of an item's attributes, in RecFormer's order: title, brand, category."""


def item_attributes(items: Catalogue) -> list[Attributes]:
    """Read the attributes of every item; those without a value are left out.

    Raises:
        UserError: the source has no titles.
    """
    titles, n = items.require_titles(), items.n_items
    brands = items.brands or [""] * n
    categories = [" ".join(names) for names in items.genres or [[]] * n]
    found = zip(titles, brands, categories, strict=True)
    return [_filled(title, brand, category) for title, brand, category in found]


def _filled(title: str, brand: str | None, category: str) -> Attributes:
    named = (("title", title), ("brand", brand or ""), ("category", category))
    return tuple((name, plain(value)) for name, value in named if plain(value))
