"""Sizes of a network, read from its parameters or from a Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.backbones.causal_text import CausalText
from coterie.llm.backbones.hub import from_hub
from coterie.llm.backbones.lora import add_lora
from coterie.llm.backbones.recformer.backbone import RecFormer
from coterie.llm.cost.formulas import ModelSize
from coterie.llm.settings.backbone import LoraSettings


def size_of(network: nn.Module, layers: Iterable[nn.Module], hidden: int, bytes: int) -> ModelSize:
    """Count the parameters of a network of width h and of its N layers; shared ones count once.

    Example:
        >>> layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        >>> size_of(nn.Sequential(nn.Embedding(3, 2), *layers), layers, 2, 4).layers
        (6, 6)
    """
    layers = list(layers)
    plain = [_count(layer, trained=False) for layer in layers]
    trained = [_count(layer, trained=True) for layer in layers]
    return ModelSize(
        layers=tuple(plain),
        rest=_count(network, trained=False) - sum(plain),
        trained_layers=tuple(trained),
        trained_rest=_count(network, trained=True) - sum(trained),
        hidden=hidden,
        bytes=bytes,
    )


def size_of_config(config: Any, lora: LoraSettings | None, bytes: int) -> ModelSize:
    """Count the parameters of a Hugging Face model without making it.

    Args:
        config: of a causal language model with ``model.layers``, or of an encoder with
            ``encoder.layer``, such as Longformer.
        lora: the adapter; None trains all parameters.
        bytes: a number.

    Raises:
        UserError: the model has no such layers, or lacks a module that is to get LoRA.
    """
    with torch.device("meta"):
        network = _kind(config).from_config(config)
    layers, targets = _layers(network)
    if lora is not None:
        add_lora(network, lora, lora.targets or targets, Key.from_seed(0))  # on meta too
    return size_of(network, layers, int(config.hidden_size), bytes)


def read_config(name: str) -> Any:
    """Read a Hugging Face configuration.

    Args:
        name: a file ``config.json`` or its folder; a kind of model such as ``llama``, for its
            defaults (those of ``llama`` are LLaMA-7B's); or a name on the hub.

    Raises:
        UserError: there is none.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    if name in CONFIG_MAPPING and not Path(name).exists():
        return AutoConfig.for_model(name)
    return from_hub(AutoConfig, name)


def writes(config: Any) -> bool:
    """Whether a configuration is that of a causal language model; otherwise of an encoder."""
    return _kind(config).__name__ == "AutoModelForCausalLM"


def _kind(config: Any) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM

    for kind in (AutoModelForCausalLM, AutoModel):
        if type(config) in kind._model_mapping:
            return kind
    raise UserError(f"a {config.model_type} is no language model: give a causal LM or an encoder")


def _layers(network: nn.Module) -> tuple[nn.ModuleList, tuple[str, ...]]:
    for like in (CausalText, RecFormer):
        try:
            found = network.get_submodule(like.place)
        except AttributeError:
            continue
        if isinstance(found, nn.ModuleList):
            return found, like.targets
    raise UserError(
        f"a {type(network).__name__} has neither 'model.layers' nor 'encoder.layer': use a model "
        "built like Llama or Longformer"
    )


def _count(module: nn.Module, *, trained: bool) -> int:
    """Numbers that are trained, or those that are not LoRA's."""
    return sum(
        parameter.numel()
        for name, parameter in module.named_parameters()
        if (parameter.requires_grad if trained else "lora_" not in name)
    )
