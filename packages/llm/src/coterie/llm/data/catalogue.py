"""The items of a federation, which everybody may know, and how alike their words are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone_settings import Field


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


_NGRAMS = (1, 2)  # words and pairs of neighbours
_WORD = r"(?u)\b\w+\b"  # single letters and digits are sizes and colours


class ItemWords:
    """TF-IDF vectors of the titles (or other words) of all items, to compare them by.

    The vectors stay sparse: squeezed into a dense vector of usual width they lose the rare words
    (brands, sizes) by which titles differ.

    Args:
        titles: of all items.
        min_items: words and pairs that fewer items have are left out.

    Attributes:
        titles: the same.
        vectors: ``(n_items, n_terms)`` of length 1, sparse.

    Raises:
        UserError: no title has a word, or none that enough items have.

    Example:
        >>> words = ItemWords(["red boat", "red sea", "ox"])
        >>> words.of_texts(["the sea"]).argmax().item()
        1
    """

    def __init__(self, titles: Sequence[str], min_items: int = 1) -> None:
        # Heavy, and only where words are compared.
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.titles = list(titles)
        self._vectorizer = TfidfVectorizer(
            ngram_range=_NGRAMS, token_pattern=_WORD, min_df=min_items
        )
        try:
            self.vectors = sparse.csr_matrix(self._vectorizer.fit_transform(titles))
        except ValueError as error:
            raise UserError(f"titles cannot be compared by their words: {error}") from error

    def of_histories(self, history: Ragged, decay: float = 1.0) -> Tensor:
        """Cosine of every item's title with those of a history taken together.

        Args:
            history: n rows of item numbers, oldest first.
            decay: the newest item counts 1, the one before it ``decay``, and so on.

        Returns:
            ``(n, n_items)`` float64; 0 for an empty history.
        """
        age = history.lengths[history.rows] - 1 - history.positions
        weights = torch.pow(torch.tensor(decay, dtype=torch.float64), age.cpu())
        entries = (weights.numpy(), history.values.cpu().numpy(), history.offsets.cpu().numpy())
        rows = sparse.csr_matrix(entries, (len(history), self.vectors.shape[0]))
        return self._cosine(rows @ self.vectors)

    def of_texts(self, texts: Sequence[str]) -> Tensor:
        """Cosine of every item's title with each of n texts, ``(n, n_items)`` float64."""
        return self._cosine(self._vectorizer.transform(texts))

    def dense(self, width: int, key: Key) -> Tensor:
        """Squeeze the vectors into few numbers by a truncated SVD, ``(n_items, width)`` float32.

        Rows are of length 1, or 0 for an item without words; with fewer than ``width`` items or
        terms the last columns are 0.

        Args:
            width: number of columns.
            key: of the start of the randomised SVD.
        """
        from sklearn.decomposition import TruncatedSVD
        from sklearn.preprocessing import normalize

        rank = min(width, *self.vectors.shape)
        svd = TruncatedSVD(rank, random_state=key.seed())
        rows = normalize(svd.fit_transform(self.vectors))
        found = torch.zeros(len(rows), width)
        found[:, :rank] = torch.from_numpy(rows)
        return found

    def _cosine(self, rows: sparse.csr_matrix) -> Tensor:
        from sklearn.preprocessing import normalize

        product = normalize(rows) @ self.vectors.T
        return torch.from_numpy(np.asarray(product.toarray(), dtype=np.float64))
