"""What passes from layer to layer of a backbone, and the tokens that it was made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.network import network_of
from coterie.llm.data.examples import Examples
from coterie.llm.split.remote_block import padding_of


@dataclass(frozen=True)
class HiddenStates:
    """Of M tokens, padding left out.

    Attributes:
        layers: N tensors ``(M, h)`` float32, the output of each layer.
        token: ``(M,)`` int64, numbers in the vocabulary.
        sequence: ``(M,)`` int64, the example that a token is of.
    """

    layers: list[Tensor]
    token: Tensor
    sequence: Tensor

    def take(self, index: Tensor) -> HiddenStates:
        """Those at the places ``index``, ``(m,)`` int64, or where it is True, ``(M,)`` bool."""
        layers = [layer[index] for layer in self.layers]
        return HiddenStates(layers, self.token[index], self.sequence[index])


@torch.no_grad()
def hidden_states(backbone: Backbone, examples: Examples) -> HiddenStates:
    """Run a batch as in training, without dropout, and keep what the layers give.

    Raises:
        UserError: the attention mask of the backbone is none that can be read.
    """
    backbone.eval()
    backbone.prepare()
    seen = _Seen(len(backbone.layers))
    with _watched(backbone, seen):
        backbone.loss(examples)
    if seen.token is None or any(layer is None for layer in seen.layers):
        raise UserError(
            f"backbone {type(backbone).__name__} did not run its word embeddings and all its "
            "layers, so their states cannot be had"
        )
    real = _real(seen.mask, seen.token).nonzero()
    row, place = real.T
    layers = [layer[row, place].float().cpu() for layer in seen.layers if layer is not None]
    return HiddenStates(layers, seen.token[row, place].cpu(), row.cpu())


def joined(parts: list[HiddenStates], lengths: list[int]) -> HiddenStates:
    """Put batches behind one another; ``lengths`` are their numbers of examples."""
    before = [sum(lengths[:place]) for place in range(len(lengths))]
    layers = [torch.cat(layer) for layer in zip(*(part.layers for part in parts), strict=True)]
    token = torch.cat([part.token for part in parts])
    shifted = [part.sequence + count for part, count in zip(parts, before, strict=True)]
    return HiddenStates(layers, token, torch.cat(shifted))


class _Seen:
    """What the last pass showed."""

    def __init__(self, depth: int) -> None:
        self.layers: list[Tensor | None] = [None] * depth
        self.token: Tensor | None = None
        self.mask: Tensor | None = None


@contextmanager
def _watched(backbone: Backbone, seen: _Seen) -> Iterator[None]:
    def on_words(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        seen.token = given[0]

    def before_layers(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.mask = named.get("attention_mask")

    words = network_of(backbone).get_input_embeddings()
    hooks = [
        words.register_forward_hook(on_words),
        backbone.layers[0].register_forward_pre_hook(before_layers, with_kwargs=True),
    ]
    for number, layer in enumerate(backbone.layers):
        # The number is bound now: a closure would see the last one.
        def after(module: nn.Module, given: Any, out: Any, number: int = number) -> None:
            seen.layers[number] = out[0] if isinstance(out, tuple) else out

        hooks.append(layer.register_forward_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _real(mask: Tensor | None, token: Tensor) -> Tensor:
    """Which tokens are not padding, ``(B, T)`` bool."""
    if mask is None:
        return torch.ones_like(token, dtype=torch.bool)
    if mask.dim() == 2 and mask.is_floating_point():  # Longformer: below 0 is masked
        return mask >= 0
    real = padding_of(mask, 0, token.shape[1])
    assert real is not None
    return real.to(token.device).expand(token.shape)
