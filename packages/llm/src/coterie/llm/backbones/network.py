"""The Hugging Face network inside a backbone."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import UserError
from coterie.llm.backbones.base import Backbone


def network_of(backbone: Backbone) -> Any:
    """Give the network of a backbone, a ``PreTrainedModel``.

    Raises:
        UserError: it has none.
    """
    return backbone.get_submodule(network_name(backbone))


def network_name(backbone: Backbone) -> str:
    """Name the attribute of a backbone that is its network.

    Raises:
        UserError: it has none.
    """
    from transformers import PreTrainedModel

    for name, module in backbone.named_children():
        if isinstance(module, PreTrainedModel):
            return name
    raise UserError(f"backbone {type(backbone).__name__} holds no Hugging Face model")
