"""Cut a backbone in two: the client's layers stay in it, the middle comes out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from torch import nn

from coterie.core.errors import UserError
from coterie.llm.backbones.base import Backbone
from coterie.llm.split.channel import Channel
from coterie.llm.split.remote_block import RemoteBlock, RemoteDecoder, RemoteLongformer
from coterie.llm.split.stacks import DecoderStack, LongformerStack, Stack

_VOLATILE = (
    "_name_or_path",
    "architectures",
    "attention_window",  # one a layer
    "dtype",
    "layer_types",  # one a layer
    "num_hidden_layers",
    "transformers_version",
)


@dataclass
class Cut:
    """A backbone that is cut.

    Attributes:
        backbone: now with the client's layers and the block in the place of the middle.
        block: to be connected to a channel.
        stack: the middle, layers k + 1 to N - 1; None where it was released.
        model: fingerprint of what both sides must agree on.
        whole: all layers before; None where the middle was released.
    """

    backbone: Backbone
    block: RemoteBlock
    stack: Stack | None
    model: str
    whole: list[nn.Module] | None

    def connect(self, channel: Channel) -> None:
        """Run the middle over a channel from now on."""
        self.block.connect(channel)

    def release(self) -> None:
        """Forget the middle: a client does not store it."""
        self.stack = None
        self.whole = None


def cut(backbone: Backbone, k: int, *, settings: str = "") -> Cut:
    """Leave the first k layers of N and the last one in the backbone, and take the others out.

    Args:
        backbone: whole.
        k: layers below the middle.
        settings: what else both sides must agree on, such as the settings of LoRA.

    Raises:
        UserError: k is out of range, or the layers are of a kind that cannot be split.
    """
    layers = list(backbone.layers)
    total = len(layers)
    if not 1 <= k <= total - 2:
        remedy = f"choose k in 1..{total - 2}" if total > 2 else "use a backbone of at least 3"
        raise UserError(f"k = {k} leaves no middle in a backbone of {total} layers: {remedy}")
    if _all_have(layers, "self_attn", "layer_idx"):
        config = layers[0].get_submodule("self_attn").config
        stack: Stack = _decoder(backbone, layers[k:-1], config)
        block: RemoteBlock = RemoteDecoder(k)
    elif _all_have(layers, "attention.self", "one_sided_attn_window_size"):
        config = layers[0].get_submodule("attention.self").config
        stack, block = LongformerStack(layers[k:-1], config), RemoteLongformer(k)
    else:
        raise UserError(
            f"backbone {type(backbone).__name__} has layers of type {type(layers[0]).__name__}, "
            "which cannot be split: layers as in Llama or Longformer are needed"
        )
    backbone.use_layers([*layers[:k], block, layers[-1]])
    return Cut(backbone, block, stack, _fingerprint(config, k, total, settings), layers)


def uncut(parts: Cut) -> None:
    """Put the middle back into the backbone.

    Raises:
        UserError: the middle was released.
    """
    if parts.whole is None:
        raise UserError("the middle is not here: it is the server's")
    parts.backbone.use_layers(parts.whole)


def _fingerprint(config: Any, k: int, n_layers: int, settings: str) -> str:
    """Hash what client and server must agree on: the model's shape, the cut, the settings."""
    shape = {name: value for name, value in config.to_dict().items() if name not in _VOLATILE}
    content = json.dumps([shape, k, n_layers, settings], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _decoder(backbone: Backbone, middle: list[nn.Module], config: Any) -> DecoderStack:
    name = f"backbone {type(backbone).__name__}"
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    if kinds:
        raise UserError(
            f"{name} has layers of {', '.join(sorted(kinds))}: only full attention can be split"
        )
    rotary = [m for m in backbone.modules() if type(m).__name__.endswith("RotaryEmbedding")]
    if len(rotary) != 1:
        raise UserError(
            f"{name} has {len(rotary)} rotary embeddings, and a split model needs one: use a "
            "Llama-like backbone"
        )
    return DecoderStack(middle, config, rotary[0])


def _all_have(layers: list[nn.Module], path: str, attribute: str) -> bool:
    try:
        return all(hasattr(layer.get_submodule(path), attribute) for layer in layers)
    except AttributeError:
        return False
