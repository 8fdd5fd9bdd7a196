"""Reading an exported adapter into a backbone, by the names of peft alone."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from coterie.llm.backbones.base import Backbone


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
