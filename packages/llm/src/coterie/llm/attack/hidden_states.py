"""What passes from layer to layer of a backbone, and the tokens that it was made of.

`coterie llm attack` looks at that of the users of a run's clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.client_data import FederatedData
from coterie.llm.data.examples import Examples
from coterie.llm.data.sequences import training_examples
from coterie.llm.split.remote_block import padding_of

_BATCH = 64  # examples that are run at once


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


def secret(states: HiddenStates) -> HiddenStates:
    """Leave out tokens that are in every sequence: the start token and the prompt tell nothing.

    Raises:
        UserError: nothing else is there.
    """
    pairs = torch.stack([states.token, states.sequence]).unique(dim=1)[0]
    token, count = pairs.unique(return_counts=True)
    everywhere = token[count == states.sequence.unique().numel()]
    kept = ~torch.isin(states.token, everywhere)
    if not bool(kept.any()):
        raise UserError("every sequence has the same tokens, so there is nothing to find out")
    return tree.take(states, kept.nonzero().flatten())


def victims(
    data: FederatedData,
    backbone: Callable[[int], Backbone],
    clients: Sequence[int],
    max_history: int,
    most: int,
    key: Key,
) -> tuple[HiddenStates, Tensor]:
    """Run the histories of clients' users, each client's through its own adapter.

    Args:
        data: the users' sequences.
        backbone: gives the shared one with the adapter of a client in it.
        clients: whose users.
        max_history: most items of a sequence; sequences of a user do not overlap.
        most: sequences in total; users are drawn until there are so many.
        key: of that draw.

    Returns:
        States of M tokens to be found out, those that every sequence has left out, and whose they
        are, ``(M,)`` int64.

    Raises:
        UserError: no user has a sequence.
    """
    examples, owner = _sequences(data, clients, max_history, most, key)
    parts = []
    for client in clients:
        of_client = (data.client_of[owner] == client).nonzero()[:, 0]
        for index in of_client.split(_BATCH):
            part = hidden_states(backbone(client), examples.take(index))
            parts.append(replace(part, sequence=index[part.sequence]))
    states = secret(reduce(tree.concatenate, parts))
    return states, owner[states.sequence]


def known_embeddings(backbone: Backbone) -> Tensor:
    """Copy the input embeddings, ``(V, h)`` float32, of the backbone before the first round.

    Where clients train their embeddings too, these are what all still have in common.
    """
    return backbone.model.get_input_embeddings().weight.detach().float().cpu().clone()


def _sequences(
    data: FederatedData, clients: Sequence[int], max_history: int, most: int, key: Key
) -> tuple[Examples, Tensor]:
    """Sequences of the clients' users, of randomly drawn ones if there are too many."""
    examples, owner = training_examples(data.split.train, max_history, max_history)
    wanted = torch.isin(data.client_of[owner], torch.tensor(clients)).nonzero()[:, 0]
    if not wanted.numel():
        names = ", ".join(map(str, clients))
        raise UserError(f"no user of client {names} has a sequence to attack")
    draw = key.fold("victims").bits(owner[wanted])
    chosen = wanted[torch.argsort(draw, stable=True)[:most]]
    return examples.take(chosen), owner[chosen]


def _real(mask: Tensor | None, token: Tensor) -> Tensor:
    """Which tokens are not padding, ``(B, T)`` bool."""
    if mask is None:
        return torch.ones_like(token, dtype=torch.bool)
    if mask.dim() == 2 and mask.is_floating_point():  # Longformer: below 0 is masked
        return mask >= 0
    real = padding_of(mask, 0, token.shape[1])
    assert real is not None
    return real.to(token.device).expand(token.shape)
