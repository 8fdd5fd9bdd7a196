"""Clients of the personal methods, each through its own process's door: the same bytes."""

import pytest
from tests.core.methods.labelled_clients import (
    SECRET,
    Net,
    built,
    samples_of,
    split,
    weights_of,
)
from tests.hosted import same_both_ways

from coterie.core.methods.bounds import CentralClient, CentralModel, LocalClient
from coterie.core.methods.fedala import FedALAClient, FedALASettings
from coterie.core.methods.fedrecon import (
    FedReconClient,
    FedReconSettings,
    MeasuredBase,
)
from coterie.core.methods.fedrod import FedRODClient, FedRODSettings
from coterie.core.methods.kit.model_messages import GlobalModel, OwnStart
from coterie.core.methods.settings.any_module import LocalSettings
from coterie.core.methods.settings.fedavg import FedAvgSettings

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
        [("receive", OwnStart(WEIGHTS)), ("train", None), ("train", None), ("evaluate", None)],
    ),
    "central": (
        CentralClient(Net(), FedAvgSettings(**GENERAL)),
        [("evaluate", CentralModel(WEIGHTS, {}))],
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_process_answers_the_same_bits(name, tmp_path):
    client, asks = METHODS[name]
    data = split([5, 0, 4], [3, 8, 11])
    same_both_ways(tmp_path, client, data, asks, SECRET)
    assert len(samples_of(data.train, 1)["y"]) == 0
