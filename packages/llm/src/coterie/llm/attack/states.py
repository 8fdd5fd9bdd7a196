"""What `coterie llm attack` looks at: hidden states of the users of a run's clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.attack.hidden_states import HiddenStates, hidden_states, joined
from coterie.llm.attack.inversion import secret
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.client_data import FederatedData
from coterie.llm.data.examples import Examples
from coterie.llm.data.sequences import training_examples

_BATCH = 64  # examples that are run at once


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
    parts, users, sizes = [], [], []
    for client in clients:
        of_client = (data.client_of[owner] == client).nonzero()[:, 0]
        for index in of_client.split(_BATCH):
            part = hidden_states(backbone(client), examples.take(index))
            parts.append(part)
            users.append(owner[index])
            sizes.append(index.numel())
    states = secret(joined(parts, sizes))
    owners = torch.cat(users)
    return states, owners[states.sequence]


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
