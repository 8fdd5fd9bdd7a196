"""What backbones share that embed an item by its text: each distinct text once for a row."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from coterie.core.tensors.saved import digest
from coterie.llm.backbones.base import Backbone

_ROOM = 1 << 28  # bytes of item embeddings that are kept: of a validation for the next training


class EmbedsItems(Backbone):
    """A backbone that scores items by embeddings of what is written of them.

    Items of equal text share an embedding, and each distinct text is embedded once. Embeddings of
    all items are remembered by the row of trained numbers that made them, so that clients of one
    row, and a row that is validated and then trained on, need them once; of the last rows, as many
    as 256 MB hold. Where layers are elsewhere each client has them made for itself, as if it were
    alone.

    Args:
        texts: of all items, as anything that is equal where they are; longer ones take longer.

    Attributes:
        text_of: ``(n_items,)`` int64, number of each item's text.
        first: ``(n_texts,)`` int64, an item of each distinct text, the shortest text first.
    """

    items_at_once = 256

    def __init__(self, texts: Sequence[Hashable]) -> None:
        super().__init__()
        self.n_items = len(texts)
        place: dict[Hashable, int] = {}
        self.text_of = torch.tensor([place.setdefault(text, len(place)) for text in texts])
        first = {text: number for number, text in reversed(list(enumerate(texts)))}
        # By length, so that little is padded.
        self.first = torch.tensor([first[text] for text in sorted(first, key=_length)])
        self._catalogue: Tensor | None = None
        self._made: OrderedDict[str, Tensor] = OrderedDict()

    @abstractmethod
    def embed_items(self, items: Tensor) -> Tensor:
        """Embed items ``(m,)`` by their texts, ``(m, h)`` of length 1."""

    def prepare(self) -> None:
        """Embed the catalogue by the row that is loaded, or take the one that is frozen."""
        self._catalogue = self.frozen_items
        self.catalogue()

    def catalogue(self) -> Tensor:
        """Embeddings of all items, ``(n_items, h)`` of length 1, without a gradient."""
        if self._catalogue is None:
            self._catalogue = self._remembered()
        return self._catalogue

    def use_layers(self, layers: Sequence[nn.Module]) -> None:
        """Run other layers; see `Backbone.use_layers`."""
        super().use_layers(layers)
        self.forget()

    def forget(self) -> None:
        """Embed all items anew at the next `prepare`."""
        self._made.clear()

    def _remembered(self) -> Tensor:
        """The catalogue by the trained numbers, made if it is not one of the last."""
        # Of the network alone: an expert's bias beside it changes no embedding.
        own = digest({n: p for n, p in self.model.named_parameters() if p.requires_grad})
        row = own + self.elsewhere
        if row not in self._made:
            self._made[row] = made = self._embedded()
            if len(self._made) > max(_ROOM // made.nbytes, 1):
                self._made.popitem(last=False)
        self._made.move_to_end(row)
        return self._made[row]

    @torch.no_grad()
    def _embedded(self) -> Tensor:
        was_training = self.training
        self.eval()
        parts = [self.embed_items(index) for index in self.first.split(self.items_at_once)]
        self.train(was_training)
        vectors = torch.cat(parts)
        by_text = torch.empty_like(vectors)
        by_text[self.text_of[self.first]] = vectors
        return by_text[self.text_of]


def _length(text: Hashable) -> int:
    return len(text) if isinstance(text, Sequence) else 0
