"""Scores of all items for users who are clients, and for someone new, as devices make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.metrics.ranking import blocks_of
from coterie.core.protocol.client import RecommendsItems
from coterie.core.protocol.messages import Down
from coterie.core.protocol.server import ServesItems
from coterie.core.tensors.stacked import Ragged

if TYPE_CHECKING:
    from coterie.core.run.driver import FederatedRun

Scored: TypeAlias = "tuple[Tensor, Tensor | UserError]"
"""Places of some users, ``(B,)``, and their scores of all items, or why they have none."""
_FEWEST = 8  # clients who are scored at once: products of fewer rows round differently


def score_clients(module: FederatedRun, users: Tensor, n_items: int) -> Iterator[Scored]:
    """Score all items for users who are clients, as their devices do.

    Args:
        module: a run.
        users: ``(U,)`` int64, numbers.
        n_items: scores of each, at most.

    Yields:
        As `RecommendsToUsers.score_users`; a client that never took part has none.
    """
    client, server, store = recommender_half(module), recommender_server(module), module.store
    new = torch.isin(users, store.newcomers(users))
    for place in new.nonzero():
        who = int(users[place])
        yield place, UserError(f"client {who} has not taken part in any round yet")
    known, down = (~new).nonzero().flatten(), None
    alike = server.serves_all_alike
    cuts = blocks_of(len(known), n_items) if alike else map(_one, range(len(known)))
    for some in (known[cut] for cut in cuts):
        if down is None or not alike:
            down = server.serve(module.server_state, int(users[some[0]]), module.newest_cohort())
        asked = users[some]
        if alike and len(some) < _FEWEST:
            asked = asked.repeat(_FEWEST)[:_FEWEST]
        yield some, client.predict(down, store.take(asked))[: len(some)]


def _one(place: int) -> slice:
    return slice(place, place + 1)


def scores_of_newcomer(module: FederatedRun, items: Tensor) -> Tensor:
    """Score all items, ``(1, n_items)``, for someone new who had ``items``, ``(n,)``.

    Private parameters are fitted to them here, whatever their order; nothing is uploaded.
    """
    down, history = served(module, None), Ragged.from_lists([sorted(items.tolist())])
    key = module.secret.fold("newcomer").fold(torch.tensor([0]))
    client = recommender_half(module)
    return client.predict(down, client.adapt(down, history, key))


def served(module: FederatedRun, user: int | None) -> Down:
    """What a client downloads to recommend on its own; None for someone new."""
    server = recommender_server(module)
    return server.serve(module.server_state, user, module.newest_cohort())


def recommender_server(module: FederatedRun) -> ServesItems[Any]:
    """The server half of a run that recommends."""
    server = module.federation.server
    assert isinstance(server, ServesItems)
    return server


def recommender_half(module: FederatedRun) -> RecommendsItems[Any]:
    """The client half of a run that recommends."""
    client = module.federation.client
    assert isinstance(client, RecommendsItems)
    return client
