"""RecFormer as a backbone: sequences and items are embedded by the same Longformer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from coterie.core.tensors.ragged import Ragged
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.recformer.model import RecformerModel
from coterie.llm.backbones.recformer.tokens import ItemTokens
from coterie.llm.data.examples import Examples

_ITEMS_AT_ONCE = 256
_FRESH_ITEMS = 128  # that pre-training embeds in a step, beside the batch's targets


class RecFormer(Backbone):
    """Score items by the cosine of a history's and an item's embedding, divided by 0.05.

    Training is a softmax over all items against a catalogue of item embeddings that gives no
    gradient (section 2.4). In stage 1 `prepare` embeds the catalogue anew; in stage 2 it is given,
    as `frozen_items`.
    """

    place = "encoder.layer"
    above = ()
    targets = ("query", "value", "query_global", "value_global")

    def __init__(self, model: RecformerModel, items: ItemTokens, temperature: float = 0.05) -> None:
        super().__init__()
        self.model, self.items, self.temperature = model, items, temperature
        self.reader = items
        self.n_items, self.hidden = len(items.items), int(model.config.hidden_size)
        self._catalogue: Tensor | None = None
        self._targets = torch.zeros(self.n_items, dtype=torch.int64)  # seen in pre-training
        # Items of equal text share an embedding: each distinct text is embedded once.
        place: dict[tuple[tuple[int, int], ...], int] = {}
        self._text_of = torch.tensor([place.setdefault(text, len(place)) for text in items.items])
        first = {text: number for number, text in reversed(list(enumerate(items.items)))}
        # By length, so that little is padded.
        self._first = torch.tensor([first[text] for text in sorted(first, key=len)])

    def prepare(self) -> None:
        """Embed the catalogue anew, or take the one that is frozen."""
        self._catalogue = self.frozen_items
        self.catalogue()

    def catalogue(self) -> Tensor:
        """Embeddings of all items, ``(n_items, h)`` of length 1."""
        if self._catalogue is None:
            was_training = self.training
            self.eval()
            with torch.no_grad():
                vectors = torch.empty(self._first.numel(), self.hidden, dtype=self.model.dtype)
                for index in self._first.split(_ITEMS_AT_ONCE):
                    vectors[self._text_of[index]] = self._embed_items(index)
            self.train(was_training)
            self._catalogue = vectors[self._text_of]
        return self._catalogue

    def network_loss(self, examples: Examples) -> Tensor:
        """Mean cross entropy of the next item among all, ``()``."""
        return cross_entropy(self._logits(examples.history, self.catalogue()), examples.target)

    def pretraining_loss(self, examples: Examples) -> Tensor:
        """Loss among the batch's targets and some others, all with gradients, ``()``.

        From a random start the embeddings of items have to be learnt too, and in a mixture of new
        and old ones a model learns to tell new from old. Logits are corrected for how often an
        item is among those embedded, so popular ones are not taught to be rare (sampled softmax).
        The other items are drawn from torch's generator, as dropout is.
        """
        n, target = self.n_items, examples.target
        self._targets += torch.bincount(target, minlength=n)
        others = torch.randperm(n)[:_FRESH_ITEMS]
        items = torch.cat([target, others]).unique()
        place = torch.empty(n, dtype=torch.int64).index_copy_(0, items, torch.arange(len(items)))
        missed = 1.0 - self._targets[items].double() / self._targets.sum()
        chance = 1.0 - (1.0 - len(others) / n) * missed ** len(examples)
        logits = self._logits(examples.history, self._embed_items(items))
        return cross_entropy(logits - chance.log().to(logits), place[target])

    def network_scores(self, history: Ragged) -> Tensor:
        """Cosines divided by the temperature, ``(n, n_items)``."""
        return self._logits(history, self.catalogue())

    def _logits(self, history: Ragged, catalogue: Tensor) -> Tensor:
        if not len(history):
            return catalogue.new_empty(0, len(catalogue))
        return self._embed(history) @ catalogue.T / self.temperature

    def _embed_items(self, item: Tensor) -> Tensor:
        return self._embed(Ragged.from_lengths(item, torch.ones_like(item)))

    def _embed(self, history: Ragged) -> Tensor:
        """Embeddings of sequences, ``(n, h)`` of length 1."""
        batch = self.items.encode(history, self.model.window)
        return normalize(self.model(batch), dim=1)
