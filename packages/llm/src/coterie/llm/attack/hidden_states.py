"""What passes from layer to layer of a backbone, and the tokens that it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.llm.backbones.base import Backbone
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
    words, layers = backbone.model.get_input_embeddings(), list(backbone.layers)
    seen: dict[nn.Module, tuple[Any, Any, Any]] = {}

    def note(module: nn.Module, given: Any, named: Any, out: Any) -> None:
        seen[module] = given, named, out[0] if isinstance(out, tuple) else out

    backbone.eval()
    backbone.prepare()
    hooks = [part.register_forward_hook(note, with_kwargs=True) for part in (words, *layers)]
    try:
        backbone.loss(examples)
    finally:
        for hook in hooks:
            hook.remove()
    if len(seen) <= len(layers):
        raise UserError(
            f"backbone {type(backbone).__name__} did not run its word embeddings and all its "
            "layers, so their states cannot be had"
        )
    token, mask = seen[words][0][0], seen[layers[0]][1].get("attention_mask")
    row, place = _real(mask, token).nonzero().T
    found = [seen[layer][2][row, place].float().cpu() for layer in layers]
    return HiddenStates(found, token[row, place].cpu(), row.cpu())


def joined(parts: list[HiddenStates], lengths: list[int]) -> HiddenStates:
    """Put batches behind one another; ``lengths`` are their numbers of examples."""
    before = [sum(lengths[:place]) for place in range(len(lengths))]
    layers = [torch.cat(layer) for layer in zip(*(part.layers for part in parts), strict=True)]
    token = torch.cat([part.token for part in parts])
    shifted = [part.sequence + count for part, count in zip(parts, before, strict=True)]
    return HiddenStates(layers, token, torch.cat(shifted))


def _real(mask: Tensor | None, token: Tensor) -> Tensor:
    """Which tokens are not padding, ``(B, T)`` bool."""
    if mask is None:
        return torch.ones_like(token, dtype=torch.bool)
    if mask.dim() == 2 and mask.is_floating_point():  # Longformer: below 0 is masked
        return mask >= 0
    real = padding_of(mask, 0, token.shape[1])
    assert real is not None
    return real.to(token.device).expand(token.shape)
