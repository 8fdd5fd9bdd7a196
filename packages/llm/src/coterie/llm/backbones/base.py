"""The one interface of all language models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.llm.backbones.expert import Expert
from coterie.llm.backbones.lora import add_lora
from coterie.llm.data.examples import Examples
from coterie.llm.settings.backbone import LoraSettings


class Backbone(nn.Module, ABC):
    """A frozen network with one set of trainable parameters; the same object serves all clients.

    Attributes:
        model: the Hugging Face network, a ``PreTrainedModel``.
        place: where the list of its layers is in it; by default as in Llama.
        above: names of the modules behind the layers, as ``place``.
        targets: names of the linear modules that get LoRA if the settings name none.
        n_items: number of items that can be recommended.
        hidden: width h of what passes from layer to layer.
        reader: writes histories as tokens; None where an item is a token.
        frozen_items: ``(n_items, h)`` item embeddings of the second stage of fine-tuning, see
            `catalogue`; None where the network as it is embeds the items.
        expert: stands beside the network, is trained with it, and has a part in the scores; None
            for the paper's methods.
        weights: digest of the network as everybody starts from it; "" where nothing named one.
    """

    model: Any
    place: ClassVar[str] = "model.layers"
    above: ClassVar[tuple[str, ...]] = ("model.norm", "lm_head")
    targets: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")
    n_items: int
    hidden: int
    reader: Any = None
    frozen_items: Tensor | None = None
    expert: Expert | None
    weights: str = ""
    writes: ClassVar[bool] = False
    """Whether the network writes text, so that its scores cannot be trained by."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = None  # of the instance: an attribute of the class would hide the module

    def constants(self) -> dict[str, str]:
        """Digests of what everybody must have alike and nobody sends."""
        return {"backbone": self.weights} if self.weights else {}

    @property
    def layers(self) -> nn.ModuleList:
        """The N transformer layers, from the input up."""
        found: nn.ModuleList = self.model.get_submodule(self.place)
        return found

    @property
    def head_names(self) -> tuple[str, ...]:
        """How the names of the parameters begin that are nearest to the scores.

        These are the last layer's, those behind it and the expert's. Item embeddings that are tied
        to the input are not.
        """
        last = f"{self.place}.{len(self.layers) - 1}"
        return "expert.", *(f"model.{name}." for name in (last, *self.above))

    @property
    def cut(self) -> int:
        """How many histories so far were longer than what the network reads."""
        return 0 if self.reader is None else int(self.reader.cut)

    def use_layers(self, layers: Sequence[nn.Module]) -> None:
        """Run these layers, numbered anew, in place of the present ones (how a model is split)."""
        self.model.set_submodule(self.place, nn.ModuleList(layers))
        self.model.config.num_hidden_layers = len(layers)
        number(layers)

    def loss(self, examples: Examples) -> Tensor:
        """Mean training loss of a batch, ``()``.

        With an expert it is the cross entropy of the target by the scores of both. A network that
        writes text is trained by its own loss, and the expert by that of its scores alone.
        """
        if self.expert is None:
            return self.network_loss(examples)
        history, target = examples.history, examples.target
        if not self.writes:
            scores = self.expert(history, self.network_scores(history))
            return cross_entropy(scores, target)
        loss = self.network_loss(examples)
        alone = self.expert(history, loss.new_zeros(len(history), self.n_items))
        return loss + cross_entropy(alone, target)

    def pretraining_loss(self, examples: Examples) -> Tensor:
        """Loss of a batch while all parameters are trained, ``()``. Default: `loss`."""
        return self.loss(examples)

    @torch.no_grad()
    def scores(self, history: Ragged) -> Tensor:
        """Score all items after each history, ``(n, n_items)`` float32, higher is better.

        A history without an item is allowed.
        """
        own = self.network_scores(history).float()
        return own if self.expert is None else self.expert(history, own).float()

    @abstractmethod
    def network_loss(self, examples: Examples) -> Tensor:
        """Mean training loss of a batch by the network alone, ``()``."""

    @abstractmethod
    def network_scores(self, history: Ragged) -> Tensor:
        """Score all items by the network alone, ``(n, n_items)``; with gradients if they are on.

        A history without an item is allowed.
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
