"""What a client of a trained run ranks with: its adapter, its own counts, the items it keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.run.driver import FederatedRun
from coterie.llm.client import Organisation
from coterie.llm.data.examples import OwnData
from coterie.llm.messages import ClientState
from coterie.llm.settings import PERSONALISED


def own_adapter(module: FederatedRun, data: OwnData, row: Tensor) -> Tensor:
    """Give what a client ranks with, ``(d,)``, of what it has received ``(d,)`` in the best round.

    That is the row itself, but for what the client keeps, or trains further.
    """
    organisation = module.federation.client
    assert isinstance(organisation, Organisation)
    settings = organisation.settings
    if settings.method not in PERSONALISED and not settings.keeps:
        return row
    mine: ClientState = module.store.take(torch.tensor([data.id]))
    whole = organisation.head.joined(row, mine.best_head)
    own = module.server_state.own
    return organisation.tuned(whole, frozen_items(module, data.id), data, own)


def own_bias(module: FederatedRun, data: OwnData) -> Tensor | None:
    """Give what a client's own counts add to its expert, ``(n_items,)``; None without any."""
    organisation = module.federation.client
    assert isinstance(organisation, Organisation)
    return organisation.own_bias(module.server_state.own, data, "test")


def frozen_items(module: FederatedRun, client: int) -> Tensor | None:
    """Give the item embeddings that a client keeps, ``(n_items, h)``; None in stage 1."""
    if module.server_state.best_stage == 1:
        return None
    mine: ClientState = module.store.take(torch.tensor([client]))
    return mine.catalogue
