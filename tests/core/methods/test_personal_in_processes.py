"""Clients of the personal methods, each through its own process's door: the same bytes."""

import pytest
import torch
from tests.core.methods.labelled_clients import (
    SECRET,
    Net,
    built,
    samples_of,
    split,
    weights_of,
)
from tests.in_process import in_process_bytes, request_bytes

from coterie.core.engines.process import answer
from coterie.core.federation.cohort import InProcessCohort
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.methods.fedala import FedALAClient, FedALASettings
from coterie.core.methods.fedrecon import (
    FedReconClient,
    FedReconSettings,
    MeasuredBase,
)
from coterie.core.methods.fedrod import FedRODClient, FedRODSettings
from coterie.core.methods.kit.model_client import GlobalModel
from coterie.core.methods.reference.central import CentralClient
from coterie.core.methods.reference.local import LocalClient
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.methods.settings.reference import LocalSettings
from coterie.core.protocol.journal import Journal

GENERAL = {"epochs": 2, "batch_size": 3, "lr": 0.2}
WEIGHTS = weights_of(built(Net))
MODEL = GlobalModel(WEIGHTS)
MOVED = GlobalModel({name: value * 0.9 for name, value in WEIGHTS.items()})
BASE = MeasuredBase(WEIGHTS, {n: v + 1 for n, v in WEIGHTS.items() if n.startswith("head")})
TRAINED = [("update", MODEL), ("update", MOVED), ("evaluate", MOVED)]
METHODS = {
    "fedala": (FedALAClient(Net(), FedALASettings(**GENERAL)), TRAINED),
    "fedrod": (FedRODClient(Net(), FedRODSettings(**GENERAL)), TRAINED),
    "fedrecon": (
        FedReconClient(Net(), FedReconSettings(**GENERAL)),
        [("update", MODEL), ("update", MOVED), ("evaluate", BASE)],
    ),
    "local": (
        LocalClient(Net(), LocalSettings(**GENERAL)),
        [("receive", MODEL), ("train", None), ("train", None), ("evaluate", None)],
    ),
    "central": (CentralClient(Net(), FedAvgSettings(**GENERAL)), [("evaluate", MODEL)]),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_process_answers_the_same_bytes(name):
    client, asks = METHODS[name]
    data, store = split([5, 0, 4], [3, 8, 11]), PrivateStore()
    kept = dict.fromkeys(data.ids.tolist(), b"")
    for number, (step, down) in enumerate(asks):
        cohort = InProcessCohort(
            client, data.ids, data, store, SECRET, (0, number), Ledger(), Journal()
        )
        cohort.enrol()
        expected = in_process_bytes(cohort, step, down)
        request = request_bytes(cohort, step, down)
        for place, one in enumerate(data.ids.tolist()):
            own = data.take(torch.tensor([place]))
            reply, kept[one] = answer(client, request, kept[one], own, SECRET.fold(one))
            assert reply == expected[one]
    assert len(samples_of(data.train, 1)["y"]) == 0
