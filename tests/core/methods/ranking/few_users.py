"""A few users for the tests of the federated baselines: some have nothing, one has everything."""

from __future__ import annotations

from typing import Any

import torch
from tests.in_process import OpenCohort, cohort_in_process

from coterie.core.data.interactions.splits import UserRows
from coterie.core.federation.federation import Federation
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.client import Client
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.server import Server
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

KEY = Key.from_seed(4)
CLIENTS = KEY.fold("clients")
N_ITEMS = 9
LENGTHS = (2, 1)


def few_users() -> UserRows:
    """Seven users: number 8 has no train items, 9 has nothing at all, 11 has every item."""
    return UserRows(
        torch.tensor([2, 5, 6, 7, 8, 9, 11]),
        Ragged.from_lists([[0, 1, 2], [3], [1, 4], [0, 5, 6, 7], [], [], list(range(N_ITEMS))]),
        Ragged.from_lists([[4], [0, 5], [], [2], [3], [], []]),
        Ragged.from_lists([[5, 3], [1], [0], [], [1, 2], [4], []]),
    )


def group_users(n_users: int = 60) -> tuple[UserRows, int]:
    """Users of 4 groups who like the 10 items of their group: 6 to train on, 2 and 2 to find."""
    users, groups = torch.arange(n_users), 4
    order = KEY.fold("items").fold(users).uniform(10).argsort(1)
    items = (users % groups)[:, None] + groups * order
    rows = [Ragged.from_lists(part.tolist()) for part in items.split([6, 2, 2], dim=1)]
    return UserRows(users, *rows), 40


def cohort_of(
    client: Client[Any], data: UserRows, number: int = 1, chunk: int | None = None
) -> OpenCohort:
    """All users in one cohort, enrolled."""
    cohort = cohort_in_process(
        client,
        data,
        PrivateStore(),
        CLIENTS,
        (0, number),
        Ledger(),
        Journal(),
        chunk,
    )
    cohort.enrol()
    return cohort


def module_of(
    server: Server[Any], client: Client[Any], data: UserRows, chunk: int | None = None
) -> FederatedRun:
    """Both halves under the driver, before the first round."""
    return FederatedRun(Federation(server, client, [data], seed=3, chunk=chunk))


def run(
    server: Server[Any],
    client: Client[Any],
    data: UserRows,
    rounds: int | None = None,
    chunk: int | None = None,
) -> FederatedRun:
    """Run some rounds, or all."""
    module = module_of(server, client, data, chunk)
    while not module.finished and (rounds is None or module.round < rounds):
        module.advance()
    return module


def normal(name, *shape):
    """Normal numbers of a key of their own."""
    return KEY.fold(name).normal(*shape, dtype=torch.float64)
