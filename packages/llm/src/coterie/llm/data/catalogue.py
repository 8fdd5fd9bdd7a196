"""The items of a federation, which everybody may know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.llm.settings.backbone import Field


@dataclass(frozen=True)
class Catalogue:
    """What is known of the items.

    Attributes:
        n_items: number of items that can be recommended.
        source: of the data, for errors.
        titles: of every item, or None; several items may have the same.
        genres: of every item, or None.
        brands: of every item ("" where it is not known), or None.
        popularity: train interactions that public users had with every item, or None.
        newer: those that they had since, before the test, or None.
    """

    n_items: int
    source: str
    titles: list[str] | None = None
    genres: list[list[str]] | None = None
    brands: list[str] | None = None
    popularity: list[int] | None = None
    newer: list[int] | None = None

    @staticmethod
    def of(data: Interactions) -> Catalogue:
        """The items of a data set."""
        return Catalogue(data.n_items, data.source, data.titles, data.genres, data.brands)

    def words(self, fields: Sequence[Field] = ()) -> list[str]:
        """Write out some fields of every item; by default titles, or genres where there are none.

        Raises:
            UserError: the source has not one of the fields.

        Example:
            >>> Catalogue(1, "mine", titles=["Up"], genres=[["Comedy", "Drama"]]).words(("genres",))
            ['Comedy Drama']
        """
        chosen = fields or (("titles",) if self.titles is not None else ("genres",))
        found: list[list[str]] = []
        for field in chosen:
            texts: Sequence[str | list[str]] | None = getattr(self, field)
            if texts is None:
                raise UserError(
                    f"{self.source} has no {field} to compare items by: choose other ones by "
                    "--expert.words, or --model.expert popularity or none"
                )
            found.append([text if isinstance(text, str) else " ".join(text) for text in texts])
        return [" ".join(parts) for parts in zip(*found, strict=True)]

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
