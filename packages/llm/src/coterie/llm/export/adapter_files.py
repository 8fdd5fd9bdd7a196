"""A client's LoRA as a folder of peft: written, read back, and refused where it does not fit."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.files import write_json, writing
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.network import network_of
from coterie.llm.export.item_embeddings import read_items, save_items

WEIGHTS, CONFIG, ORIGIN = "adapter_model.safetensors", "adapter_config.json", "coterie.json"
_PREFIX = "base_model.model."  # what peft puts before the names of the wrapped model
_ADAPTER = "default"  # peft's name of the one adapter


def save_adapter(backbone: Backbone, folder: Path, origin: Mapping[str, Any]) -> None:
    """Write the LoRA that is in a backbone so that ``PeftModel.from_pretrained`` reads it.

    Args:
        backbone: with LoRA.
        folder: an existing one.
        origin: what is noted in `ORIGIN` beside a digest of the frozen model.

    Raises:
        UserError: there is no LoRA, it changes nothing, or the disk is full.
    """
    config = copy.copy(_config(backbone))
    config.inference_mode = True
    config.base_model_name_or_path = network_of(backbone).config.name_or_path or None
    if type(network_of(backbone)).__name__.endswith("ForCausalLM"):
        config.task_type = "CAUSAL_LM"
    tensors = {name: value.contiguous() for name, value in _parts(backbone).items()}
    _check_trained(tensors, "the adapter")
    with writing(folder):
        config.save_pretrained(str(folder))
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    save_items(backbone, folder)
    write_json(folder / ORIGIN, {**origin, "base": base_digest(backbone)})


def load_adapter(folder: Path, backbone: Backbone) -> None:
    """Put a saved LoRA into a backbone; if it is refused, the backbone is as before.

    Args:
        folder: as `save_adapter`, or peft for one on the same model, wrote it.
        backbone: with LoRA of the same rank, scale and modules, on the same frozen model.

    Raises:
        UserError: a file is missing or damaged, or the adapter is empty or does not fit.
    """
    own = _parts(backbone)
    config, tensors = _read_config(folder), _read_weights(folder / WEIGHTS)
    _check_trained(tensors, str(folder / WEIGHTS))
    _check_scale(config, _config(backbone), folder)
    _check_shapes(tensors, own, folder / WEIGHTS)
    _check_base(folder, backbone)
    items = read_items(folder, backbone)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])
    backbone.frozen_items = items
    backbone.prepare()


def base_digest(backbone: Backbone) -> str:
    """Digest of the frozen parameters, which an adapter belongs to."""
    digest = hashlib.sha256()
    for name, parameter in sorted(network_of(backbone).named_parameters()):
        if "lora_" not in name:
            plain = name.replace(".base_layer.", ".")
            digest.update(f"{plain} {tuple(parameter.shape)}".encode())
            flat = parameter.detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def has_lora(backbone: Backbone) -> bool:
    """Whether a backbone has LoRA; otherwise all its parameters are trained."""
    return any("lora_" in name for name, _ in backbone.named_parameters())


def _config(backbone: Backbone) -> Any:
    if not has_lora(backbone):
        raise UserError(
            "the backbone has no LoRA, all its parameters are trained: there is no adapter apart "
            "from the model; train by --model.trained lora, or export the model by --merged"
        )
    return network_of(backbone).peft_config[_ADAPTER]


def _parts(backbone: Backbone) -> dict[str, nn.Parameter]:
    """The factors by the names that they have in peft's files."""
    _config(backbone)
    return {
        _PREFIX + name.replace(f".{_ADAPTER}.", "."): parameter
        for name, parameter in network_of(backbone).named_parameters()
        if "lora_" in name
    }


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} is no adapter: it has no {CONFIG}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict) or found.get("peft_type") != "LORA":
        kind = found.get("peft_type") if isinstance(found, dict) else None
        raise UserError(f"{path} describes an adapter of type {kind}, not of type LORA")
    return found


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"{path.parent} is no adapter: it has no {path.name}")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _check_trained(tensors: Mapping[str, Tensor], name: str) -> None:
    if not any(tensor.numel() for tensor in tensors.values()):
        raise UserError(f"{name} is empty: it holds no number; export it again")
    bad = [key for key, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if bad:
        raise UserError(f"{name} has numbers in '{bad[0]}' that are not finite: train again")
    factors = [tensor for key, tensor in tensors.items() if "lora_B" in key]
    if factors and not any(bool(tensor.any()) for tensor in factors):
        raise UserError(f"{name} is empty: all its factors B are 0, so that it changes nothing")


def _check_scale(config: Mapping[str, Any], own: Any, folder: Path) -> None:
    for key, setting in (("r", "rank"), ("lora_alpha", "alpha")):
        given, wanted = config.get(key), getattr(own, key)
        if given != wanted:
            raise UserError(
                f"{folder} has LoRA of {setting} {given}, the backbone's is {wanted:g}: build the "
                f"backbone with --lora.{setting} {given}"
            )
    for key in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern"):
        if (config.get(key) or None) != (getattr(own, key) or None):
            raise UserError(f"{folder} is an adapter with '{key}', which the backbone has not")


def _check_shapes(
    tensors: Mapping[str, Tensor], own: Mapping[str, nn.Parameter], path: Path
) -> None:
    for name in own:
        if name not in tensors:
            raise UserError(f"{path} lacks '{name}': it is of another model or other modules")
    for name, tensor in tensors.items():
        if name not in own:
            raise UserError(
                f"{path} has '{name}', for which the backbone has no place: it is of another "
                "model or other modules"
            )
        if tensor.shape != own[name].shape:
            raise UserError(
                f"'{name}' in {path} is {tuple(tensor.shape)}, the backbone's is "
                f"{tuple(own[name].shape)}: it is of another model or another rank"
            )


def _check_base(folder: Path, backbone: Backbone) -> None:
    """Compare the frozen models, where the folder tells of its own."""
    try:
        noted = json.loads((folder / ORIGIN).read_text(encoding="utf-8")).get("base")
    except (OSError, ValueError, AttributeError):
        return  # written by peft itself
    if noted and noted != base_digest(backbone):
        raise UserError(
            f"{folder} is an adapter for another frozen model of the same shape: use the data, "
            "seed and pre-training that it was trained with"
        )
