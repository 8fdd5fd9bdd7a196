"""The items of a federation, which everybody may know."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError


@dataclass(frozen=True)
class Catalogue:
    """What is known of the items.

    Attributes:
        n_items: number of items that can be recommended.
        source: of the data, for errors.
        titles: of every item, or None; several items may have the same.
        genres: of every item, or None.
        brands: of every item ("" where it is not known), or None.
    """

    n_items: int
    source: str
    titles: list[str] | None = None
    genres: list[list[str]] | None = None
    brands: list[str] | None = None

    @staticmethod
    def of(data: Interactions) -> Catalogue:
        """The items of a data set."""
        return Catalogue(data.n_items, data.source, data.titles, data.genres, data.brands)

    def require_titles(self) -> list[str]:
        """Return ``titles``.

        Raises:
            UserError: the source has none.
        """
        if self.titles is None:
            raise UserError(
                f"{self.source} has no titles: use backbone tiny-item, or a data set with titles "
                "(for a file of yours, name the column by --data.columns title=COLUMN)"
            )
        return self.titles
