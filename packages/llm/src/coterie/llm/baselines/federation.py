"""Federations in which every user is a client: FedMF, LightFR and FedPerGNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.privacy.attack import AttackReport, attack_curve
from coterie.core.privacy.build import middleware
from coterie.core.run.rounds import FederatedModule
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.llm.baselines.fedmf import ItemTable
from coterie.llm.baselines.fedmf_server import fedmf
from coterie.llm.baselines.fedpergnn_server import fedpergnn
from coterie.llm.baselines.lightfr_server import lightfr
from coterie.llm.data.client_data import PUBLIC, FederatedData
from coterie.llm.quality import LENGTHS
from coterie.llm.settings.run import Settings

USER_METHODS = ("fedmf", "lightfr", "fedpergnn")
_ITEM_ROWS = {"lightfr": "votes on their bits", "fedpergnn": "noisy and among made-up ones"}


def user_federation(settings: Settings, data: FederatedData) -> Federation:
    """Build both halves of ``settings.method``, one of `USER_METHODS`.

    Public users take part in training, since language models are pre-trained on them, and are not
    measured.
    """
    secret = Key.from_seed(settings.seed).fold("secret of the users")
    dtype = getattr(torch, settings.engine.dtype)
    halves: tuple[Any, Any]
    match settings.method:
        case "fedmf":
            limits: Any = settings.fedmf
            halves = fedmf(limits, data.n_items, LENGTHS, secret, dtype)
        case "lightfr":
            limits = settings.lightfr
            halves = lightfr(limits, data.n_items, LENGTHS)
        case _:
            limits = settings.fedpergnn
            halves = fedpergnn(limits, data.n_items, LENGTHS, secret, dtype)
    server, client = halves
    return Federation(
        server=server,
        client=client,
        blocks=[all_users(data)],
        seed=settings.seed,
        rounds=limits.rounds,
        chunk=settings.engine.chunk,
        middleware=middleware(settings.privacy),
        monitor=server.monitor,
        client_columns=("eval/recall@10", "test/recall@10"),
    )


def attack_users(
    module: FederatedModule, settings: Settings, scales: Sequence[float]
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
    uploads = cohort.ask("update", ItemTable(table)).up.rows.wire()
    keys = Key.from_seed(settings.seed).fold("attack").fold(cohort.ids)
    return attack_curve(uploads, table, cohort.data.train, scales, keys)


def all_users(data: FederatedData) -> UserRows:
    """Items of the clients' and the public users; the latter have nothing to be found."""
    split = data.split
    ids = torch.nonzero((data.client_of >= 0) | (data.client_of == PUBLIC)).flatten()
    measured = (data.client_of >= 0)[ids]
    valid, test = (_emptied(part.take(ids), measured) for part in (split.valid, split.test))
    return UserRows(ids, split.train.take(ids), valid, test)


def _emptied(rows: Ragged, kept: torch.Tensor) -> Ragged:
    """Rows without items where ``kept``, ``(C,)`` bool, is false."""
    values = rows.values[kept[rows.rows]]
    return Ragged.from_lengths(values, torch.where(kept, rows.lengths, 0))
