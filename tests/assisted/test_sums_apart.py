"""Sums of organisations that run apart: the same numbers, also where they leave behind masks."""

import pytest
import torch
from tests.assisted.small_organisations import finished
from tests.hosted import Hosts, TakenApart, bits

from coterie.assisted.experiment import Experiment
from coterie.assisted.readings import resolve
from coterie.assisted.settings import DomainSettings, ModelSettings, Settings
from coterie.core.engines import hidden_sums, nodes
from coterie.core.engines.host import ClientHost
from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.aggregate import AggregateSettings
from coterie.core.settings.base import EngineSettings
from coterie.core.tensors import tree

pytestmark = pytest.mark.usefixtures("rounds_alone")


def settings(secret=False, **more):
    chosen = {
        "data": DomainSettings(domains="uniform", count=3),
        "model": ModelSettings("blend", hidden=4, code=2, members=2, rank=3),
        "aggregate": AggregateSettings(secret=secret),
    }
    if secret:
        chosen["engine"] = EngineSettings(name="processes", processes=3)
    return Settings(**({"method": "sums", "rounds": 3} | chosen | more))


def apart(given, folder):
    experiment = Experiment(given)
    return experiment, TakenApart.of(experiment, folder, list(torch.arange(3).split(1)))


def test_organisations_apart_give_the_bits_of_one_process(tmp_path):
    experiment, taken = apart(settings(), tmp_path)
    inside = finished(FederatedRun(experiment.federation()))
    with Hosts(taken.folders, **taken.known) as hosts:
        run = finished(taken.over(hosts))
        assert run.results == inside.results
        assert run.history == [
            {n: v for n, v in row.items() if n != "cost/local_steps"} for row in inside.history
        ]
    for k, folder in enumerate(taken.folders):
        kept = ClientHost(folder).exchange.store.take(torch.tensor([k]))
        assert bits(kept) == bits(inside.store.take(torch.tensor([k])))
    assert run.results["test/rmse"] > 0


LARGE = ModelSettings("autorec", hidden=64, code=8, members=4)


def test_sums_may_be_as_large_as_the_model(tmp_path):
    """Far beyond what a reply may hold beside them; masked ones take 8 bytes a number."""
    given = settings(model=LARGE, rounds=1)
    _, taken = apart(given, tmp_path)
    with Hosts(taken.folders, **taken.known) as hosts:
        run = finished(taken.over(hosts))
        each = sum(value.numel() for value in run.server_state.params.values())
    assert 4 * each > 4 * (1 << 17)
    assert run.history[0]["fed/clients"] == 3


@pytest.mark.long
@pytest.mark.parametrize("model", [None, LARGE], ids=["blend", "large"])
def test_behind_masks_the_server_learns_the_sum_alone(model, tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    more = {} if model is None else {"model": model}
    plain = finished(FederatedRun(Experiment(settings(**more)).federation()))
    _, taken = apart(settings(secret=True, **more), tmp_path)
    seen = []

    def overheard(request, parts, bounds):
        seen.append((request.step.name, parts))
        return hidden_sums.sum_of(request, parts, bounds)

    monkeypatch.setattr(nodes, "sum_of", overheard)
    with Hosts(taken.folders, **taken.known) as hosts:
        run = finished(taken.over(hosts))
    assert [name for name, _ in seen] == ["sum"] * 3
    for _, parts in seen:
        for one in parts:
            assert all(leaf.dtype == torch.int64 for _, leaf in tree.tensors(one.total))
    for row, other in zip(run.history, plain.history, strict=True):
        assert row["eval/rmse"] == pytest.approx(other["eval/rmse"], abs=1e-4)


def test_other_methods_have_no_sums_to_hide(tmp_path):
    given = settings(secret=True, model=ModelSettings("gaussian"), method="residuals")
    with pytest.raises(UserError, match=r"'aggregate\.secret' is for methods whose server"):
        Experiment(resolve(given)).federation()
