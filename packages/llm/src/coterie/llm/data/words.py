"""How alike items are by the words of their titles, by sparse vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged

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
