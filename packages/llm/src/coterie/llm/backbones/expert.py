"""An expert of words and popularity beside a backbone: BIGRec's injection (arXiv 2308.08434)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from coterie.core.errors import UserError
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone_settings import ExpertSettings
from coterie.llm.data.catalogue import Catalogue, ItemWords


class ItemVectors(nn.Module):
    """Compare items by dense vectors that are not trained, as `ItemWords` does by sparse ones.

    Args:
        vectors: ``(n_items, h)``, of length 1.
        weights: digest of what made them, which everybody must have alike.

    Example:
        >>> vectors = ItemVectors(torch.eye(3), "")
        >>> vectors.of_histories(Ragged.from_lists([[0], [], [0, 1]]), 0.0).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    vectors: Tensor

    def __init__(self, vectors: Tensor, weights: str) -> None:
        super().__init__()
        self.weights = weights
        self.register_buffer("vectors", vectors, persistent=False)

    def of_histories(self, history: Ragged, decay: float) -> Tensor:
        """Cosine of every item with those of a history taken together, ``(n, n_items)``.

        Args:
            history: n rows of item numbers, oldest first; 0 for one without any.
            decay: the newest item counts 1, the one before it ``decay``, and so on.
        """
        return cosines(self.vectors, history, decay)


class Expert(nn.Module):
    """Score an item i after a history by ``scale * (cosine of words + b_i) + backbone * its own``.

    The cosine is that of sparse vectors, of `ItemWords`; ``dense`` times that of `ItemVectors` may
    be added to it; the bias b is trained with the adapter. Where a client counts what its own users
    had, ``scale * own`` is added, which is not trained.

    Args:
        words: of all items, or None without the cosine.
        bias: ``(n_items,)`` what b starts from, or None without it.
        settings: the factors.
        vectors: of all items, or None without their cosine.

    Attributes:
        own: ``(n_items,)`` of the client whose turn it is; None without. It is the client's, and
            in no adapter, so that it is neither sent nor mixed.

    Example:
        >>> expert = Expert(None, torch.tensor([0.0, 1.0]), ExpertSettings(scale=2.0))
        >>> expert(Ragged.from_lists([[0]]), torch.tensor([[10.0, 0.0]])).tolist()
        [[1.0, 2.0]]
    """

    def __init__(
        self,
        words: ItemWords | None,
        bias: Tensor | None,
        settings: ExpertSettings,
        vectors: ItemVectors | None = None,
    ) -> None:
        super().__init__()
        self.words, self.vectors, self.settings = words, vectors, settings
        self.bias = None if bias is None else nn.Parameter(bias)
        self.own: Tensor | None = None

    def factors(self) -> dict[str, str]:
        """Write out the formula's numbers by name, for files."""
        names = ["scale", "backbone", "decay"]
        if self.vectors is not None:
            names.append("dense")
        return {name: str(getattr(self.settings, name)) for name in names}

    def parts(self) -> dict[str, Tensor]:
        """Give the numbers that its scores need beside the words, by name, for files."""
        vectors = None if self.vectors is None else self.vectors.vectors
        bias = None if self.bias is None else self.bias.detach()
        found = {"bias": bias, "own": self.own, "vectors": vectors}
        return {name: value for name, value in found.items() if value is not None}

    @torch.no_grad()
    def use(self, parts: Mapping[str, Tensor]) -> None:
        """Score by such numbers instead."""
        self.own = parts.get("own")
        if self.bias is not None:
            self.bias.copy_(parts["bias"])
        if self.vectors is not None:
            self.vectors.vectors = parts["vectors"]

    def forward(self, history: Ragged, own: Tensor) -> Tensor:
        """Score all items after each of n histories, ``(n, n_items)``.

        Args:
            history: n rows of item numbers, oldest first.
            own: ``(n, n_items)`` scores of the backbone.
        """
        how, scores = self.settings, self.settings.backbone * own
        if self.words is not None:
            cosine = self.words.of_histories(history, how.decay)
            scores = scores + how.scale * cosine.to(own)
        if self.vectors is not None:
            cosine = self.vectors.of_histories(history, how.decay)
            assert how.dense is not None  # filled in with the vectors
            scores = scores + how.scale * how.dense * cosine.to(own)
        for bias in (self.bias, self.own):
            scores = scores if bias is None else scores + how.scale * bias
        return scores


def make_expert(
    kind: str, items: Catalogue, settings: ExpertSettings, vectors: ItemVectors | None = None
) -> Expert | None:
    """Make what ``model.expert`` names of public facts alone; None for "none".

    Raises:
        UserError: the items lack the words that are to be compared.
    """
    if kind == "none":
        return None
    words = bias = None
    if kind in ("titles", "both"):
        words = ItemWords(items.words(settings.words), settings.min_items)
    if kind in ("popularity", "both"):
        if items.popularity is None:
            raise UserError("the items have no counts of public users, for 'model.expert'")
        counts = torch.tensor(items.popularity, dtype=torch.float32)
        factor = 0.0 if settings.of_all is None else settings.popularity
        bias = factor * counts.log1p()
    return Expert(words, bias, settings, vectors)


def cosines(vectors: Tensor, history: Ragged, decay: float) -> Tensor:
    """Cosine of every item with the sum of a history's, which ``decay`` with age.

    Args:
        vectors: ``(n_items, h)``, of length 1.
        history: n rows of item numbers, oldest first.
        decay: the newest item counts 1, the one before it ``decay``, and so on.

    Returns:
        ``(n, n_items)``; 0 for an empty history.
    """
    age = history.lengths[history.rows] - 1 - history.positions
    weight = torch.pow(torch.tensor(decay, dtype=vectors.dtype), age)
    users = vectors.new_zeros(len(history), vectors.shape[1])
    users = users.index_add(0, history.rows, weight[:, None] * vectors[history.values])
    return normalize(users, dim=1) @ vectors.T
