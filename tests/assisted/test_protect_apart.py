"""Protections of organisations that run apart: each has its folder, with the shared secret."""

import pytest
import torch
from tests.assisted.small_organisations import finished
from tests.hosted import Hosts, TakenApart, bits

from coterie.assisted.experiment import Experiment
from coterie.assisted.settings import (
    DomainSettings,
    ModelSettings,
    ProtectSettings,
    Settings,
    TrainSettings,
)
from coterie.core.engines.host import ClientHost
from coterie.core.run.driver import FederatedRun

pytestmark = pytest.mark.usefixtures("rounds_alone")


@pytest.mark.parametrize(
    "settings",
    [
        {"protect": ProtectSettings("dp", sum=True)},
        {"protect": ProtectSettings("ip"), "reading": "released"},
    ],
    ids=["dp and sums", "ip as released"],
)
def test_organisations_apart_give_the_bits_of_one_process(settings, tmp_path) -> None:
    data = DomainSettings(domains="uniform", count=3)
    model, train = ModelSettings(hidden=4, code=2), TrainSettings(epochs=1)
    given = Settings(data=data, model=model, train=train, rounds=2, **settings)
    experiment, everybody = Experiment(given), torch.arange(3)
    whole = experiment.federation()
    inside = finished(FederatedRun(whole))
    apart = TakenApart.of(experiment, tmp_path, list(everybody.split(1)))
    with Hosts(apart.folders, **apart.known) as hosts:
        run = finished(apart.over(hosts))
        assert run.results == inside.results
        assert run.history == [
            {n: v for n, v in row.items() if n != "cost/local_steps"} for row in inside.history
        ]
    for k, folder in enumerate(apart.folders):
        one = torch.tensor([k])
        kept = ClientHost(folder).exchange.store.take(one)
        assert bits(kept) == bits(inside.store.take(one))
    assert run.results["test/rmse"] > 0
