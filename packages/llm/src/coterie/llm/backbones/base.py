"""The one interface of all language models, and LoRA, which may be added to each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.core.errors import UserError
from coterie.core.tensors.device import CPU, computing_on
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone_settings import LoraSettings
from coterie.llm.backbones.expert import Expert
from coterie.llm.data.examples import Examples


def add_lora(
    model: nn.Module, settings: LoraSettings, targets: tuple[str, ...], key: Key, place: str
) -> None:
    """Add LoRA to a model in place and freeze everything else (Hu et al. 2022).

    The factor A is random, by ``key``; B starts at 0, so the model's output is unchanged.

    Args:
        model: of Hugging Face.
        settings: of the adapter, and which layers get one.
        targets: names of the linear modules that do.
        key: of the factors A.
        place: of the list of layers in the model.

    Raises:
        UserError: no module has one of these names, the model has fewer layers than are to get an
            adapter, or it has one already, which peft would empty.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise UserError(
            "the model has an adapter of peft on top already: merge it first, by merge_and_unload()"
        )
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if missing := [target for target in targets if target not in names]:
        raise UserError(
            f"the model has no module named {missing[0]!r} for LoRA: name its linear modules by "
            "--lora.targets"
        )
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # peft takes floats too
        lora_dropout=settings.dropout,
        target_modules=list(targets),
        bias="none",
        **_top(model, settings.top, place),
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with key.fold("lora").torch_rng(), computing_on(CPU):  # drawn there, moved to their layers
        inject_adapter_in_model(config, model)


def _top(model: nn.Module, top: int | None, place: str) -> dict[str, Any]:
    """What peft is told so that the last ``top`` layers alone get an adapter; None: all do."""
    if top is None:
        return {}
    layers: Any = model.get_submodule(place)
    total = len(layers)
    if top > total:
        raise UserError(f"'lora.top' is {top}, but the backbone has {total} layers: choose fewer")
    pattern = place.rpartition(".")[2]
    return {"layers_to_transform": list(range(total - top, total)), "layers_pattern": [pattern]}


@contextmanager
def base_model(model: nn.Module) -> Iterator[None]:
    """Switch LoRA off inside the block, so that the model is the frozen one.

    A module that stands for layers elsewhere can take part: if it has an attribute
    ``adapters_enabled``, this is False inside the block.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    remote = [module for module in model.modules() if hasattr(module, "adapters_enabled")]
    # peft's switch also unfreezes what it switches on.
    trained = [(p, p.requires_grad) for module in adapted for p in module.parameters()]
    try:
        _switch(adapted, remote, False)
        yield
    finally:
        _switch(adapted, remote, True)
        for parameter, requires_grad in trained:
            parameter.requires_grad_(requires_grad)


def _switch(adapted: list, remote: list, on: bool) -> None:
    for module in adapted:
        module.enable_adapters(on)
    for module in remote:
        module.adapters_enabled = on


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
    targets: tuple[str, ...] = ("q_proj", "v_proj")
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
        vectors = None if self.expert is None else self.expert.vectors
        found = {"backbone": self.weights, "vectors": "" if vectors is None else vectors.weights}
        return {name: one for name, one in found.items() if one}

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
    def elsewhere(self) -> str:
        """Names what stands in for layers of this network: whose it is, and in which state.

        It is "" where all layers are here.
        """
        return "".join(getattr(layer, "elsewhere", "") for layer in self.layers)

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
            scores = self.expert(history, self.training_scores(examples))
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

    def training_scores(self, examples: Examples) -> Tensor:
        """Score all items by the network alone, ``(n, n_items)``, to be trained by with an expert.

        Default: as for a ranking.
        """
        return self.network_scores(examples.history)

    def add_lora(self, settings: LoraSettings, key: Key) -> None:
        """Add LoRA and freeze everything else; without it, all parameters are trained.

        Raises:
            UserError: the model lacks a module that is to get LoRA.
        """
        add_lora(self.model, settings, settings.targets or self.targets, key, self.place)

    def reads(self) -> dict[str, Tensor]:
        """Give what the tokenizer makes of the items, for a digest. Default: there is none."""
        return {}

    def settle(self) -> None:
        """Compute what follows from the network that everybody starts from. Default: nothing."""

    def catalogue(self) -> Tensor:
        """Embeddings of all items, ``(n_items, h)``, that the second stage keeps as they are."""
        raise NotImplementedError(f"fine-tuning of {type(self).__name__} has one stage")

    def forget(self) -> None:
        """Make anew at the next `prepare` what is remembered by the adapter. Default: nothing."""

    def prepare(self) -> None:
        """Recompute what depends on the trainable parameters before scoring. Default: nothing."""


def hides_padding(real: Tensor, like: Tensor) -> Tensor:
    """Make the mask that layers as BERT has them add to their scores, ``(B, 1, 1, T)``.

    Args:
        real: ``(B, T)`` bool, False at padding.
        like: of the mask's number format.
    """
    return (~real)[:, None, None].to(like) * torch.finfo(like.dtype).min


def first_of(out: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Give the states among what a layer returns."""
    return out[0] if isinstance(out, tuple) else out


def number(layers: Sequence[nn.Module]) -> None:
    """Give decoder layers their places in a cache: the positions in ``layers``."""
    for place, layer in enumerate(layers):
        attention: Any = getattr(layer, "self_attn", None)
        if attention is not None:
            attention.layer_idx = place
