"""An expert of words and popularity beside a backbone: BIGRec's injection (arXiv 2308.08434)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.tensors.ragged import Ragged
from coterie.llm.data.catalogue import Catalogue
from coterie.llm.data.words import ItemWords
from coterie.llm.settings.backbone import ExpertSettings


class Expert(nn.Module):
    """Score an item i after a history by ``scale * (cosine of words + b_i) + backbone * its own``.

    The cosine is that of sparse vectors, of `ItemWords`; the bias b is trained with the adapter.

    Args:
        words: of all items, or None without the cosine.
        bias: ``(n_items,)`` what b starts from, or None without it.
        settings: the factors.

    Example:
        >>> expert = Expert(None, torch.tensor([0.0, 1.0]), ExpertSettings(scale=2.0))
        >>> expert(Ragged.from_lists([[0]]), torch.tensor([[10.0, 0.0]])).tolist()
        [[1.0, 2.0]]
    """

    def __init__(
        self, words: ItemWords | None, bias: Tensor | None, settings: ExpertSettings
    ) -> None:
        super().__init__()
        self.words, self.settings = words, settings
        self.bias = None if bias is None else nn.Parameter(bias)

    def factors(self) -> dict[str, str]:
        """Write out the formula's numbers by name, for files."""
        names = ("scale", "backbone", "decay")
        return {name: str(getattr(self.settings, name)) for name in names}

    def forward(self, history: Ragged, own: Tensor) -> Tensor:
        """Score all items after each of n histories, ``(n, n_items)``.

        Args:
            history: n rows of item numbers, oldest first.
            own: ``(n, n_items)`` scores of the backbone.
        """
        scores = self.settings.backbone * own
        if self.words is not None:
            cosine = self.words.of_histories(history, self.settings.decay)
            scores = scores + self.settings.scale * cosine.to(own)
        return scores if self.bias is None else scores + self.settings.scale * self.bias


def make_expert(kind: str, items: Catalogue, settings: ExpertSettings) -> Expert | None:
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
        bias = settings.popularity * counts.log1p()
    return Expert(words, bias, settings)
