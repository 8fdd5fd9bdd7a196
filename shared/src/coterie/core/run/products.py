"""Runs whose users are clients: the products that their scores are, for exports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.protocol.client import Factors, RecommendsItems
from coterie.core.protocol.messages import Down
from coterie.core.run.driver import FederatedRun
from coterie.core.run.exported import Asked, Exported, Graph
from coterie.core.run.scoring import recommender_half, served

_CHECKED = 64  # users by whose vectors a graph is checked
_LOADING = """\
from safetensors.numpy import load_file

items = load_file("model.safetensors")["items"]  # a row an item, as in items.csv
scores = items @ vector + offset                 # of the user, on the user's device
"""
_OWN_LOADING = """\
from safetensors.numpy import load_file

items = load_file("model.safetensors")["items"]  # a row an item, as in items.csv
mine = load_file("own.safetensors")
scores = items @ mine["vector"] + mine["offset"]
"""


class Products(nn.Module):
    """Score all items: <vector, row> + offset.

    Args:
        items: ``(n_items, d)``.
    """

    items: Tensor

    def __init__(self, items: Tensor) -> None:
        super().__init__()
        self.register_buffer("items", items)

    def forward(self, vector: Tensor, offset: Tensor) -> Tensor:
        """Score for vectors ``(B, d)`` and offsets ``(B,)``: ``(B, n_items)``."""
        return vector @ self.items.T + offset[:, None]


def exported_products(module: FederatedRun, data: Interactions, asked: Asked) -> Exported:
    """Give the rows of the items, and with a user its own vector and offset.

    Args:
        module: a run.
        data: its data.
        asked: the user.

    Raises:
        UserError: the scores are no products, nobody took part, or there is no such user.
    """
    down, client = served(module, None), recommender_half(module)
    everybody = torch.arange(data.n_users)
    new = set(module.store.newcomers(everybody).tolist())
    known = torch.tensor([user for user in range(data.n_users) if user not in new])
    if not len(known):
        raise UserError("no client has taken part in any round yet: there is nothing to export")
    some = module.store.take(known[:_CHECKED])
    found = client.factors(down, some)
    inputs = {"vector": found.vectors, "offset": found.offsets}
    own = {}
    if asked.client is not None:
        one = _of(module, client, down, asked, data.n_users, new)
        own = {"vector": one.vectors[0], "offset": one.offsets[0]}
    return Exported(
        tested=_tested(module),
        tensors={"items": found.items},
        about={
            "items": "a row for each item, in the order of items.csv",
            "vector": f"{asked.name}'s own: what rows are multiplied by",
            "offset": f"{asked.name}'s own: added to every score",
        },
        absent=(
            *([] if own else ["Vectors of users: they are private, and stay with their devices."]),
            "The items that a user has had: leave them out of a list yourself.",
        ),
        loading=_OWN_LOADING if own else _LOADING,
        own=own,
        items=data,
        graph=Graph(
            Products(found.items),
            inputs,
            {"vector": "(B, d), of the users", "offset": "(B,), of the users"},
            "scores",
            client.predict(down, some),
        ),
    )


def _of(
    module: FederatedRun,
    client: RecommendsItems[Any],
    down: Down,
    asked: Asked,
    n_users: int,
    new: set[int],
) -> Factors:
    number = asked.client
    assert number is not None
    if not 0 <= number < n_users:
        raise UserError(f"there is no client {number}: choose 0 to {n_users - 1}")
    if number in new:
        raise UserError(f"{asked.name} has not taken part in any round yet")
    return client.factors(down, module.store.take(torch.tensor([number])))


def _tested(module: FederatedRun) -> str:
    chosen = getattr(module.server_state, "chosen", None)
    number = module.round if chosen is None else chosen.round
    of_block = f" of block {module.block}" if len(module.federation.blocks) > 1 else ""
    return f"round {number}{of_block}" if number else f"the start{of_block or ' of the run'}"
