"""A small federation of organisations for tests: random histories, a random tiny backbone."""

import torch
from tests.in_process import cohort_in_process

from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.journal import Journal
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.algorithm import PPLR
from coterie.llm.backbone_settings import LoraSettings
from coterie.llm.backbones.tiny_item import TinyItem
from coterie.llm.client import Organisation
from coterie.llm.data.examples import Examples, OrganisationData, Queries
from coterie.llm.readings import resolve
from coterie.llm.settings import FederatedDataSettings, MixingSettings, Settings, TrainSettings

N_ITEMS = 12


def backbone(layers=2, dtype=torch.float32, seed=0, **lora):
    key = Key.from_seed(seed)
    model = TinyItem(N_ITEMS, width=8, layers=layers, heads=2, context=4, key=key)
    model.add_lora(LoraSettings(rank=2, alpha=4.0, dropout=0.0, **lora), key)
    return model.to(dtype)


def settings(method="pplr", *, clients=3, mixing=None, train=None, **more):
    return resolve(
        Settings(
            method=method,
            data=FederatedDataSettings(clients=clients, max_history=4, span=4),
            mixing=MixingSettings(**(mixing or {})),
            train=TrainSettings(**({"batch_size": 4, "lr": 0.01} | (train or {}))),
            **more,
        )
    )


def examples(n, seed):
    key = Key.from_seed(seed)
    length = key.fold("length").integers(4, torch.arange(n)) + 1
    total = int(length.sum()) if n else 0
    items = key.fold("items").integers(N_ITEMS, torch.arange(total))
    target = key.fold("target").integers(N_ITEMS, torch.arange(n))
    return Examples(Ragged.from_lengths(items, length), target)


def queries(n, seed):
    history = examples(n, seed).history
    wanted = [[i for i in range(N_ITEMS) if i not in row][:2] for row in history.tolists()]
    return Queries(torch.arange(n), history, history, Ragged.from_lists(wanted))


def organisations(sizes=(9, 5, 7), users=(3, 2, 4)):
    ids = torch.arange(len(sizes))
    train = [examples(n, 10 + c) for c, n in enumerate(sizes)]
    valid, test = ([queries(n, seed + c) for c, n in enumerate(users)] for seed in (20, 30))
    had = [part.target for part in train]
    newer = [part.targets.values for part in valid]
    return OrganisationData(ids, train, valid, test, had, newer)


def federation(chosen, model=None, data=None):
    """Server half, and a cohort in the first round with everybody enrolled."""
    client = Organisation(chosen, model or backbone())
    data = data or organisations()
    server = PPLR(chosen, len(data), client.head.shared(client.start))
    return server, cohort_of(client, data)


def whole_rows(state, cohort):
    """What all clients have, ``(K, d)``: what was sent, and what they keep."""
    clients = range(len(state.rows))
    return torch.stack([whole_row(state, cohort.store, cohort.client, c) for c in clients])


def whole_row(state, store, client, number):
    """What one client has, ``(d,)``."""
    kept = store.take(torch.tensor([number])).head
    return client.head.joined(state.rows[number], kept)


def cohort_of(client, data, when=(0, 1), store=None):
    asked = cohort_in_process(
        client,
        data,
        store or PrivateStore(stacked=False),
        Key.from_seed(5).fold("clients"),
        when,
        Ledger(),
        Journal(),
    )
    asked.enrol()
    return asked
