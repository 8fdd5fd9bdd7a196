"""A small stream of blocks and a plain driver of both halves, for tests."""

import random
from dataclasses import dataclass, field, replace

import torch
from tests.in_process import cohort_in_process

from coterie.continual.algorithm import F3CRec
from coterie.continual.client import ContinualClient
from coterie.continual.messages import ClientState
from coterie.continual.settings import (
    KDSettings,
    ModelSettings,
    ReplaySettings,
    RLP2Settings,
    Settings,
    SPPSettings,
    resolve,
)
from coterie.core.data.interactions.splits import UserRows
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.journal import Journal
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

METHODS = ("ft", "reg", "kd", "rlp2", "spp", "f3crec")
ABLATIONS = ("f3crec-wo-cc", "f3crec-wo-arm", "f3crec-wo-sc", "f3crec-wo-itm")
BACKBONES = ("fedmf", "fedncf", "pfedrec")
N_ITEMS = (30, 36, 40)
EVERYTHING = 3  # a user who has consumed every item of block 0


def settings(method="f3crec", backbone="fedmf", dtype="float64", **changes):
    """Resolved settings with gentle steps, several local batches and lists that do replay."""
    model = ModelSettings(
        name=backbone,
        dim=4,
        lr=0.1 if backbone == "fedmf" else 0.02,
        lr_eta=3.0,
        batch_size=8,
        negatives=2,
        init_std=0.3,
    )
    made = Settings(
        method=method,
        rounds=4,
        patience=4,
        model=replace(model, **changes.pop("model", {})),
        replay=ReplaySettings(top_n=6, epsilon=0.01, lambda_kd=0.3),
        kd=KDSettings(strength=0.3),
        rlp2=RLP2Settings(neighbours=4, capacity=12),
        spp=SPPSettings(n_slow=3, n_fast=2, horizon=10, refresh=2),
        engine=EngineSettings(dtype=dtype),
    )
    return resolve(replace(made, **changes))


def block_data(users, earlier=None):
    """Build a block from {user: (train, valid, test)}."""
    ids = sorted(users)
    parts = [Ragged.from_lists([users[u][k] for u in ids]) for k in range(3)]
    return UserRows(torch.tensor(ids), *parts, earlier=earlier)


def make_stream(n_users=50, seed=0):
    """Three blocks: newcomers and leavers, 1 to 12 train items, some without valid or test."""
    draw = random.Random(seed)
    first, second = int(0.7 * n_users), int(0.85 * n_users)
    blocks = []
    for t, n_items in enumerate(N_ITEMS):
        known = [range(first), range(second), range(n_users)][t]
        new = range([0, first, second][t], known.stop)
        old = [u for u in known if u < new.start]
        users = {}
        for u in [*draw.sample(old, int(0.6 * len(old))), *new]:
            size = draw.randint(1, 12)
            held_out = draw.choice([0, 1, 2])  # 0: neither validation nor test items
            chosen = draw.sample(range(n_items), size + 2 * held_out)
            users[u] = (
                chosen[:size],
                chosen[size : size + held_out],
                chosen[size + held_out :],
            )
        if t == 0:
            users[EVERYTHING] = (list(range(n_items)), [], [])
        blocks.append(block_data(users))
    return blocks


def private(params, best, memory, blocks):
    """State of users who took part in all blocks so far, as many each, and left nothing out."""
    return ClientState(
        params, best, memory, blocks, blocks - 1, torch.empty(len(blocks), 0, dtype=torch.int32)
    )


@dataclass
class Run:
    """What a run leaves: server state, private state, and the journal of every round."""

    state: object
    store: PrivateStore
    ledger: Ledger
    scalars: list[dict] = field(default_factory=list)
    clients: list[dict] = field(default_factory=list)
    refused: list = field(default_factory=list)
    tables: list = field(default_factory=list)  # at the end of each block

    def private(self):
        """State of all clients, by ascending id."""
        ids = (self.store._place >= 0).nonzero().flatten()
        return ids, self.store.take(ids)

    def tensors(self):
        """Everything that training left, named."""
        _, profile = self.private()
        named = {"items": self.state.items, "best": self.state.best}
        return named | dict(tree.tensors(profile))


def simulate(chosen, blocks, *, chunk=None, n_items=N_ITEMS, after_block=None, middleware=()):
    """Run a stream without Lightning, with the keys of `coterie.core.run.driver.FederatedRun`.

    Args:
        after_block: called with (t, blocks, run) once block t has ended.
    """
    server, client = F3CRec(chosen, n_items), ContinualClient(chosen)
    root = Key.from_seed(chosen.seed)
    secret, server_key = root.fold("clients"), root.fold("server")
    run = Run(server.begin(server_key.fold("begin")), PrivateStore(), Ledger())
    blocks = list(blocks)
    for t in range(len(blocks)):
        data, journal, history = blocks[t], Journal(), []

        def cohort(r, t=t, data=data, journal=journal):
            parts = (run.store, secret, (t, r), run.ledger, journal, chunk, middleware)
            return cohort_in_process(client, data, *parts)

        run.state = server.start_block(
            run.state, t, cohort(0), server_key.fold("block", t, "round", 0)
        )
        decision, r = "go", 0
        while decision == "go":
            r += 1
            now, key = cohort(r), server_key.fold("block", t, "round", r)
            run.state = server.round(run.state, now, key)
            history.append(dict(journal.scalars))
            decision = server.stop(run.state, history)
            if decision != "go":
                run.state = server.end_block(run.state, now, key.fold("end"))
            run.scalars.append(dict(journal.scalars))
            run.clients.append(dict(journal.clients))
            run.refused += journal.refused
            journal.clear()
        run.tables.append(run.state.best)
        if after_block is not None:
            after_block(t, blocks, run)
    return run
