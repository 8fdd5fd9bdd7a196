"""Scores of all items for one user: what organisations say, with the help of their peers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.assisted.algorithm import Relay
from coterie.assisted.apart.client import Apart
from coterie.assisted.client import Organisation
from coterie.assisted.data.organisations import Organisations, OwnDomain
from coterie.assisted.view import places_of
from coterie.core.data.interactions.alignment import Alignment
from coterie.core.data.interactions.cells import Cells
from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun


def scores_of_user(
    module: FederatedRun, organisations: Organisations, align: Alignment, user: int
) -> Tensor:
    """Score all items for a user, ``(1, n_items)``; -inf where no organisation can.

    Organisations of MTAL ask each other about the cells of the user, as they do about those of the
    test, and add up what the models of the best round's federation answer (prediction stage).

    Args:
        module: a run.
        organisations: its data.
        align: "user": each organisation scores the items that it has; "item": that of the user
            scores all items.
        user: number.
    """
    asked = {one.id: cells for one in organisations.each if len(cells := _cells(one, align, user))}
    states: dict[int, Any] = {k: module.store.take(torch.tensor([k])) for k in asked}
    found = torch.full((_n_items(organisations, align),), -torch.inf)
    for k, scores in _predicted(module, organisations, asked, states).items():
        columns, rows = asked[k].columns.values, asked[k].rows
        domain = organisations.each[k].domain
        items = domain.columns[columns] if align == "user" else domain.rows[rows]
        found[items] = scores.float()
    return found[None]


def _predicted(
    module: FederatedRun,
    organisations: Organisations,
    asked: dict[int, Cells],
    states: dict[int, Any],
) -> dict[int, Tensor]:
    """Scores of the cells that organisations are asked for, ``(n,)`` each."""
    server, client = module.federation.server, module.federation.client
    each = {k: (states[k], organisations.each[k], cells) for k, cells in asked.items()}
    if isinstance(client, Apart):
        return {k: client.predicted(*given) for k, given in each.items()}
    assert isinstance(server, Relay)
    assert isinstance(client, Organisation)
    places = {k: places_of(states[k], cells) for k, cells in asked.items()}
    predictions = server.answered(module.server_state, module.newest_cohort(), places)
    if not predictions.keys() >= asked.keys():
        raise UserError(
            "organisations give sums of three or more only (protect.sum), and fewer ask for this "
            "user: train without protect.sum to recommend"
        )
    return {k: client.predicted(predictions[k], *given) for k, given in each.items()}


def _cells(one: OwnDomain, align: Alignment, user: int) -> Cells:
    """All cells of a user in an organisation's matrix; none if it does not know the user."""
    n_rows, n_columns = one.train.n_rows, one.train.n_columns
    of_user = one.domain.rows if align == "user" else one.domain.columns
    (place,) = (of_user == user).nonzero(as_tuple=True)
    other = torch.arange(n_columns if align == "user" else n_rows) if len(place) else place
    mine = place.expand(len(other)) if len(place) else place
    rows, columns = (mine, other) if align == "user" else (other, mine)
    return Cells.from_pairs(rows, columns, torch.zeros(len(other)), n_rows, n_columns)


def _n_items(organisations: Organisations, align: Alignment) -> int:
    items = [
        one.domain.columns if align == "user" else one.domain.rows for one in organisations.each
    ]
    return int(torch.cat(items).max()) + 1
