"""What PPLR is compared with on the same users, each a client: FedMF, LightFR, FedPerGNN."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coterie.core.data.interactions.splits import UserRows
from coterie.core.errors import UserError
from coterie.core.methods.ranking.client import RankingClient
from coterie.core.methods.ranking.fedmf import UPDATE, FedMFClient, FedMFServer, ItemTable
from coterie.core.methods.ranking.fedpergnn import FedPerGNNClient, FedPerGNNServer
from coterie.core.methods.ranking.lightfr import LightFRClient, LightFRServer
from coterie.core.methods.ranking.server import RankingServer
from coterie.core.privacy.attack import AttackReport, attack_curve
from coterie.core.protocol.common_secret import CommonSecret
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key
from coterie.llm.data.client_data import PUBLIC, FederatedData
from coterie.llm.data.examples import emptied
from coterie.llm.quality import LENGTHS
from coterie.llm.settings import Settings

_ITEM_ROWS = {"lightfr": "votes on their bits", "fedpergnn": "noisy and among made-up ones"}


def user_server(settings: Settings, n_items: int) -> RankingServer:
    """Make the server of ``settings.method``, one of `USER_METHODS`."""
    dtype = getattr(torch, settings.engine.dtype)
    match settings.method:
        case "fedmf":
            return FedMFServer(settings.fedmf, n_items, LENGTHS, dtype)
        case "lightfr":
            return LightFRServer(settings.lightfr, n_items, LENGTHS)
        case _:
            return FedPerGNNServer(settings.fedpergnn, n_items, LENGTHS, dtype)


def user_client(settings: Settings, n_items: int, secret: CommonSecret) -> RankingClient:
    """Make the client; the secret is of all users together, and the server does not get it."""
    dtype = getattr(torch, settings.engine.dtype)
    match settings.method:
        case "fedmf":
            return FedMFClient(settings.fedmf, n_items, LENGTHS, secret, dtype)
        case "lightfr":
            return LightFRClient(settings.lightfr, n_items, LENGTHS)
        case _:
            return FedPerGNNClient(settings.fedpergnn, n_items, LENGTHS, secret, dtype)


def attack_users(
    module: FederatedRun, settings: Settings, scales: Sequence[float]
) -> dict[float, AttackReport]:
    """Attack one upload of every user of a trained FedMF: which of all items are positives?

    Raises:
        UserError: what leaves is no steps on item rows in the clear.
    """
    method = settings.method
    if method != "fedmf" or settings.fedmf.transport != "plain":
        form = _ITEM_ROWS.get(method, f"encrypted or masked ({settings.fedmf.transport})")
        raise UserError(
            f"item rows do leave a client of --method {method}, {form}, but the attack is "
            "available only for the steps on rows of --method fedmf --fedmf.transport plain"
        )
    cohort = module.newest_cohort()
    table = module.server_state.best["items"]
    up = cohort.ask(UPDATE, ItemTable(table)).up
    assert up is not None
    assert up.rows is not None
    uploads = up.rows.wire()
    keys = Key.from_seed(settings.seed).fold("attack").fold(cohort.ids)
    return attack_curve(uploads, table, module.newest_data.train, scales, keys)


def all_users(data: FederatedData) -> UserRows:
    """Items of the clients' and the public users; the latter have nothing to be found."""
    split = data.split
    ids = torch.nonzero((data.client_of >= 0) | (data.client_of == PUBLIC)).flatten()
    measured = (data.client_of >= 0)[ids]
    valid, test = (emptied(part.take(ids), measured) for part in (split.valid, split.test))
    return UserRows(ids, split.train.take(ids), valid, test)
