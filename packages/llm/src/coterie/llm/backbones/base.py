"""The one interface of all language models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.llm.backbones.lora import add_lora
from coterie.llm.data.examples import Examples
from coterie.llm.settings.backbone import LoraSettings


class Backbone(nn.Module, ABC):
    """A frozen network with one set of trainable parameters; the same object serves all clients.

    Attributes:
        model: the Hugging Face network, a ``PreTrainedModel``.
        place: where the list of its layers is in it; by default as in Llama.
        targets: names of the linear modules that get LoRA if the settings name none.
        n_items: number of items that can be recommended.
        hidden: width h of what passes from layer to layer.
        reader: writes histories as tokens; None where an item is a token.
        frozen_items: ``(n_items, h)`` item embeddings of the second stage of fine-tuning, see
            `catalogue`; None where the network as it is embeds the items.
    """

    model: Any
    place: ClassVar[str] = "model.layers"
    targets: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")
    n_items: int
    hidden: int
    reader: Any = None
    frozen_items: Tensor | None = None

    @property
    def layers(self) -> nn.ModuleList:
        """The N transformer layers, from the input up."""
        found: nn.ModuleList = self.model.get_submodule(self.place)
        return found

    @property
    def cut(self) -> int:
        """How many histories so far were longer than what the network reads."""
        return 0 if self.reader is None else int(self.reader.cut)

    def use_layers(self, layers: Sequence[nn.Module]) -> None:
        """Run these layers, numbered anew, in place of the present ones (how a model is split)."""
        self.model.set_submodule(self.place, nn.ModuleList(layers))
        self.model.config.num_hidden_layers = len(layers)
        number(layers)

    @abstractmethod
    def loss(self, examples: Examples) -> Tensor:
        """Mean training loss of a batch, ``()``."""

    def pretraining_loss(self, examples: Examples) -> Tensor:
        """Loss of a batch while all parameters are trained, ``()``. Default: `loss`."""
        return self.loss(examples)

    @abstractmethod
    def scores(self, history: Ragged) -> Tensor:
        """Score all items after each history, ``(n, n_items)`` float32, higher is better.

        Called without gradients. A history without an item is allowed.
        """

    def add_lora(self, settings: LoraSettings, key: Key) -> None:
        """Add LoRA and freeze everything else; without it, all parameters are trained.

        Raises:
            UserError: the model lacks a module that is to get LoRA.
        """
        add_lora(self.model, settings, settings.targets or self.targets, key)

    def catalogue(self) -> Tensor:
        """Embeddings of all items, ``(n_items, h)``, that the second stage keeps as they are."""
        raise NotImplementedError(f"fine-tuning of {type(self).__name__} has one stage")

    def prepare(self) -> None:
        """Recompute what depends on the trainable parameters before scoring. Default: nothing."""


def number(layers: Sequence[nn.Module]) -> None:
    """Give decoder layers their places in a cache: the positions in ``layers``."""
    for place, layer in enumerate(layers):
        attention: Any = getattr(layer, "self_attn", None)
        if attention is not None:
            attention.layer_idx = place
