"""Cut a backbone in two: the client's layers stay in it, with a stand-in for the middle."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.cache_utils import DynamicLayer

from coterie.core.errors import UserError
from coterie.llm.backbones.base import Backbone
from coterie.llm.split.channel import GLOBAL, LOCAL, MASKED, Channel, Context
from coterie.llm.split.execution import DecoderStack, EncoderStack, LongformerStack, Stack


class Remote(torch.autograd.Function):
    """Send hidden states forth and their gradient back over a channel."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, anchor: Tensor, channel: Channel, about: Context
    ) -> Tensor:
        """Run the middle on ``(B, T, h)``, the output of the client's lower layers.

        The anchor requires a gradient; without it autograd would skip the middle where the client
        itself has nothing to train below.
        """
        out, ctx.call = channel.forward(hidden.detach(), about)
        ctx.channel = channel
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        """Give the gradient of the hidden states; the middle keeps that of its own parameters."""
        return ctx.channel.backward(ctx.call, grad), None, None, None


class RemoteBlock(nn.Module):
    """A layer that runs the middle over a channel; its place among the client's is ``index``.

    Without ``adapters_enabled`` the frozen model without the adapter runs.
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.trained_elsewhere = True  # whether something in the middle is trained
        self.adapters_enabled = True  # `coterie.llm.backbones.base.base_model` switches it
        self.channel: Channel | None = None

    def connect(self, channel: Channel) -> None:
        """Use a channel from now on."""
        self.channel = channel

    @property
    def elsewhere(self) -> str:
        """Names whose middle it is and in which state, see `Channel.elsewhere`."""
        return "" if self.channel is None else self.channel.elsewhere

    def _run(self, hidden: Tensor, about: dict[str, Any]) -> Tensor:
        if self.channel is None:
            raise UserError("the split model has no channel: connect one before it is used")
        gradient = torch.is_grad_enabled() and (self.trained_elsewhere or hidden.requires_grad)
        context = Context(
            **about,
            adapted=self.adapters_enabled,
            dropout=self.training,
            gradient=gradient,
            input_gradient=gradient and hidden.requires_grad,
        )
        anchor = torch.zeros((), requires_grad=gradient)
        return Remote.apply(hidden, anchor, self.channel, context)


class RemoteCacheLayer(DynamicLayer):
    """Note what is done to a cache, so that the server can do it to its own.

    Keys and values of the middle stay on the server. Beam search reorders the sequences of a cache
    between two steps, and assisted generation shortens it: that is told with the next step.

    Args:
        number: of the cache, unique on the client's channel.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.length = 0
        self.order: Tensor | None = None  # (B,) places in the batch as the server has it
        self._batch = 0

    def grow(self, batch: int, tokens: int) -> None:
        """Note that the server has ``tokens`` more of ``batch`` sequences."""
        self.length += tokens
        self.order = None
        self._batch = batch

    def get_seq_length(self) -> int:
        """Tokens of every sequence in the server's cache."""
        return self.length

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Refuse keys and values.

        Raises:
            UserError: always; no layer of the client has this place.
        """
        raise UserError(
            "two layers share a place in the cache: cut the backbone with coterie's cut"
        )

    def reset(self) -> None:
        """Forget the cached tokens."""
        self.length = 0
        self.order = None

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; the number is negative or 0."""
        self.length = max(0, self.length - abs(tokens_to_remove))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let every sequence continue another one."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence."""
        self.batch_select_indices(torch.arange(self._batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences, in this order."""
        if self.length:
            chosen = indices.to("cpu", torch.int32)
            self.order = chosen if self.order is None else self.order[chosen.long()]


class RemoteDecoder(RemoteBlock):
    """In place of layers as Llama has them."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> Tensor:
        """Run the middle on ``(B, T, h)``.

        Raises:
            UserError: the mask is not causal, or there is no channel.
        """
        batch, length = hidden_states.shape[:2]
        layer = self._cached(past_key_values)
        past = 0 if layer is None else layer.length
        about = {
            "mask": padding_of(attention_mask, past, length),
            "positions": _positions(position_ids, past, length),
            "past": past,
            "cache": None if layer is None else layer.number,
            "order": None if layer is None or not past else layer.order,
        }
        out = self._run(hidden_states, about)
        if layer is not None:
            layer.grow(batch, length)
        return out

    def _cached(self, cache: Any) -> RemoteCacheLayer | None:
        """Our layer in a cache of the client's, put there on first sight."""
        if cache is None or self.channel is None:
            return None
        layers = cache.layers
        if len(layers) == self.index:
            layers.append(RemoteCacheLayer(self.channel.new_cache()))
        elif not isinstance(layers[self.index], RemoteCacheLayer):
            layers[self.index] = RemoteCacheLayer(self.channel.new_cache())
        return layers[self.index]


class RemoteLongformer(RemoteBlock):
    """In place of layers as Longformer has them."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> tuple[Tensor]:
        """Run the middle on ``(B, T, h)``, padded to the attention window.

        The mask is ``(B, T)``: below 0 masked, 0 local, above 0 global.
        """
        mask = hidden_states.new_zeros(hidden_states.shape[:2])
        mask = mask if attention_mask is None else attention_mask
        codes = torch.full(mask.shape, LOCAL, dtype=torch.int8)
        codes = codes.masked_fill(mask.cpu() < 0, MASKED).masked_fill(mask.cpu() > 0, GLOBAL)
        return (self._run(hidden_states, {"mask": codes}),)


class RemoteEncoder(RemoteBlock):
    """In place of layers as BERT has them."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> Tensor:
        """Run the middle on ``(B, T, h)``; the mask, ``(B, 1, 1, T)``, is added to the scores."""
        real = None if attention_mask is None else (attention_mask[:, 0, 0] >= 0).cpu()
        return self._run(hidden_states, {"mask": real})


def padding_of(mask: Tensor | None, past: int, length: int) -> Tensor | None:
    """Read which tokens are padding from the mask that a decoder layer gets.

    Args:
        mask: ``(B, S)``, or ``(B, 1, length, S)`` bool or added to the scores; S = past + length.
        past: cached tokens.
        length: tokens in this call.

    Returns:
        ``(B, S)`` bool, False at padding; None for no mask.

    Raises:
        UserError: it is not a causal mask with padding, so that the server could not rebuild it.

    Example:
        >>> causal = torch.ones(2, 2).tril().bool().expand(1, 1, 2, 2)
        >>> padding_of(causal & torch.tensor([False, True]), 0, 2).tolist()
        [[False, True]]
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() not in (2, 4):
        raise UserError(
            "a split model needs attention 'sdpa' or 'eager': their masks can be rebuilt"
        )
    if mask.dim() == 2:
        return mask.bool().cpu()
    visible = mask if mask.dtype == torch.bool else mask >= 0
    visible = visible[:, 0]
    # The last token sees every token that is not padding.
    real = visible[:, -1]
    causal = torch.ones(length, real.shape[1], dtype=torch.bool, device=mask.device).tril(past)
    expected = causal & real[:, None]
    # Where a padding token sees nothing, some implementations let it see everything.
    blind = visible.all(2, keepdim=True) & ~expected.any(2, keepdim=True)
    if bool(((visible != expected) & ~blind).any()):
        raise UserError(
            "the attention mask is not causal with padding (a sliding window, packed sequences?), "
            "so the server cannot rebuild it: use a backbone with full attention"
        )
    return real.cpu()


def _positions(positions: Tensor | None, past: int, length: int) -> Tensor | None:
    """Positions, unless they count on from ``past``."""
    if positions is None:
        return None
    usual = torch.arange(past, past + length, device=positions.device)
    return None if bool((positions == usual).all()) else positions.to("cpu", torch.int32)


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
    elif _all_have(layers, "attention.self", "query"):
        config = layers[0].get_submodule("attention.self").config
        stack, block = EncoderStack(layers[k:-1], config), RemoteEncoder(k)
    else:
        raise UserError(
            f"backbone {type(backbone).__name__} has layers of type {type(layers[0]).__name__}, "
            "which cannot be split: layers as in Llama, Longformer or BERT are needed"
        )
    block.trained_elsewhere = any(p.requires_grad for p in stack.parameters())
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
