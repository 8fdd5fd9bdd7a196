"""Cut a backbone in two: the client's layers stay in it, the middle comes out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from torch import nn

from coterie.core.errors import UserError
from coterie.llm.backbones.base import Backbone, number
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
        middle: ``(k, N - 1)``, the layers that are elsewhere.
        block: to be connected to a channel.
        stack: the middle; None where the client never had it.
        model: fingerprint of what both sides must agree on.
        whole: all layers before; None where the client never had them.
    """

    backbone: Backbone
    middle: tuple[int, int]
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


def cut(backbone: Backbone, k: int, *, n_layers: int | None = None, settings: str = "") -> Cut:
    """Leave the first k layers and the last one in the backbone, and take the others out.

    Args:
        backbone: with N layers; of a client that never loads the middle, with k + 1.
        k: layers below the middle.
        n_layers: N, where the backbone has the client's layers only.
        settings: what else both sides must agree on, such as the settings of LoRA.

    Raises:
        UserError: k is out of range, or the layers are of a kind that cannot be split.
    """
    layers = list(backbone.layers)
    total = len(layers) if n_layers is None else n_layers
    if not 1 <= k <= total - 2:
        remedy = f"choose k in 1..{total - 2}" if total > 2 else "use a backbone of at least 3"
        raise UserError(f"k = {k} leaves no middle in a backbone of {total} layers: {remedy}")
    whole = len(layers) == total
    if not whole and len(layers) != k + 1:
        raise UserError(
            f"the backbone has {len(layers)} layers: give all {total} or the client's {k + 1}"
        )
    config, kind = _config(backbone, layers[0]), _kind(backbone, layers)
    stack = _stack(backbone, layers[k:-1], config, kind) if whole else None
    block: RemoteBlock = RemoteDecoder(k) if kind is DecoderStack else RemoteLongformer(k)
    model = fingerprint(config, k, total, settings)
    backbone.use_layers([*layers[:k], block, layers[-1]])
    if kind is DecoderStack:
        number(list(backbone.layers))
    return Cut(backbone, (k, total - 1), block, stack, model, layers if whole else None)


def uncut(parts: Cut) -> None:
    """Put the middle back into the backbone.

    Raises:
        UserError: the middle was released, or never there.
    """
    if parts.whole is None:
        raise UserError("the middle is not here: it is the server's")
    parts.backbone.use_layers(parts.whole)
    number(parts.whole)


def fingerprint(config: Any, k: int, n_layers: int, settings: str = "") -> str:
    """Hash what client and server must agree on: the model's shape, the cut, the settings.

    Args:
        config: of the model.
        k: layers below the middle.
        n_layers: N.
        settings: what else.
    """
    shape = {name: value for name, value in config.to_dict().items() if name not in _VOLATILE}
    content = json.dumps([shape, k, n_layers, settings], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _kind(backbone: Backbone, layers: list[nn.Module]) -> type[Stack]:
    if all(_has(layer, "self_attn", "layer_idx") for layer in layers):
        _full_attention(backbone, layers)
        return DecoderStack
    if all(_has(layer, "attention.self", "one_sided_attn_window_size") for layer in layers):
        return LongformerStack
    raise _unsplittable(backbone, layers[0])


def _config(backbone: Backbone, layer: nn.Module) -> Any:
    """The model's configuration, which every attention module holds."""
    for name in ("self_attn", "attention.self"):
        if _has(layer, name, "config"):
            return layer.get_submodule(name).config
    raise _unsplittable(backbone, layer)


def _stack(backbone: Backbone, middle: list[nn.Module], config: Any, kind: type[Stack]) -> Stack:
    if kind is LongformerStack:
        return LongformerStack(middle, config)
    rotary = [m for m in backbone.modules() if type(m).__name__.endswith("RotaryEmbedding")]
    if len(rotary) != 1:
        raise UserError(
            f"backbone {type(backbone).__name__} has {len(rotary)} rotary embeddings, and a split "
            "model needs one: use a Llama-like backbone"
        )
    return DecoderStack(middle, config, rotary[0])


def _full_attention(backbone: Backbone, layers: list[nn.Module]) -> None:
    kinds = set(getattr(_config(backbone, layers[0]), "layer_types", None) or [])
    if kinds - {"full_attention"}:
        raise UserError(
            f"backbone {type(backbone).__name__} has layers of {', '.join(sorted(kinds))}: only "
            "full attention can be split"
        )


def _has(layer: nn.Module, path: str, attribute: str) -> bool:
    try:
        return hasattr(layer.get_submodule(path), attribute)
    except AttributeError:
        return False


def _unsplittable(backbone: Backbone, layer: nn.Module) -> UserError:
    return UserError(
        f"backbone {type(backbone).__name__} has layers of type {type(layer).__name__}, which "
        "cannot be split: layers as in Llama or Longformer are needed"
    )
