"""Exporting into new folders, and reading an adapter back by the names of peft alone."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from coterie.core.files import new_folder
from coterie.llm.backbones.base import Backbone
from coterie.llm.export import write_adapter, write_merged


@torch.no_grad()
def read_adapter(folder: Path, backbone: Backbone) -> None:
    """Put the factors, and the frozen items if there are any, into a backbone with LoRA."""
    tensors = load_file(folder / "adapter_model.safetensors")
    own = {n: p for n, p in backbone.model.named_parameters() if "lora_" in n}
    names = {f"base_model.model.{n.replace('.default.', '.')}": p for n, p in own.items()}
    assert names.keys() == tensors.keys()
    for name, parameter in names.items():
        parameter.copy_(tensors[name])
    items = folder / "item_embeddings.safetensors"
    if items.exists():
        backbone.frozen_items = load_file(items)["item_embeddings"].clone()
    backbone.prepare()


def export_adapter(*given: Any) -> None:
    """Write an adapter into a new folder, the last argument."""
    *given, folder = given
    with new_folder(folder) as temporary:
        write_adapter(*given, temporary)


def export_merged(*given: Any) -> float:
    """Write a merged model into a new folder, the last argument; give the difference."""
    *given, folder = given
    with new_folder(folder) as temporary:
        return write_merged(*given, temporary)
