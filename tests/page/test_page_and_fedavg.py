"""With nothing to choose PAGE is FedAvg with p = 1/N."""

from dataclasses import replace

import pytest
import torch
from tests.core.methods.labelled_clients import close, reversed_ids, split
from tests.page.small_games import game, play, settings

from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import EngineSettings
from coterie.page.experiment import Experiment
from coterie.page.settings import GameSettings, Settings, TaskSettings, TrainSettings

OFF = GameSettings(tune_lr=False, tune_epochs=False, tune_p=False)


def finished(method, *, rounds=4, chunk=None, free=OFF, reading="recommended", **train):
    options = {"epochs": 2, "batch_size": 20, "weighting": "equal"} | train
    chosen = Settings(
        method=method,
        reading=reading,
        rounds=rounds,
        data=TaskSettings(clients=6, quantity_skew=0.5),
        train=TrainSettings(**options),
        game=free,
        engine=EngineSettings(chunk=chunk),
    )
    module = FederatedRun(Experiment(chosen).federation())
    for _ in range(rounds):
        module.advance()
    return module


def same(found, expected):
    """Within what a processor may round otherwise: rates of all clients or of each, say."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def plain() -> FederatedRun:
    """FedAvg, which no test changes."""
    return finished("fedavg")


@pytest.mark.parametrize("reading", ["recommended", "literal", "released"])
def test_page_switched_off_is_fedavg(reading, plain):
    page = finished("page", reading=reading)
    assert plain.server_state.weights["head.weight"].abs().max() > 0.1  # it did train
    same(page.server_state.weights, plain.server_state.weights)
    ids = page.newest_cohort().ids
    same(page.store.take(ids).personal, plain.store.take(ids).personal)
    for name, value in plain.history[-1].items():
        if name.split("/")[0] in ("fed", "eval", "test"):
            assert page.history[-1][name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("chunk", [1, 4])
def test_so_it_is_in_chunks_and_with_few_clients_a_round(chunk):
    options = {"chunk": chunk, "participation": 0.5}
    page, plain = (finished(method, **options) for method in ("page", "fedavg"))
    same(page.server_state.weights, plain.server_state.weights)


def test_any_choice_makes_a_difference():
    plain = finished("fedavg", rounds=2).server_state.weights["head.weight"]
    for name in ("tune_lr", "tune_epochs", "tune_p"):
        off = {"tune_lr": False, "tune_epochs": False, "tune_p": False} | {name: True}
        chosen = GameSettings(**off)  # in the reading literal, agents begin with random actions
        found = finished("page", rounds=2, free=chosen, reading="literal").server_state.weights
        assert (found["head.weight"] - plain).abs().max() > 1e-3, name


def test_the_weighting_by_samples_is_another():
    equal, by_samples = (
        finished("fedavg", rounds=1, weighting=name).server_state.weights["head.weight"]
        for name in ("equal", "samples")
    )
    assert not torch.equal(equal, by_samples)


def test_the_order_of_clients_makes_no_difference_to_fedavg():
    """The same clients under the same ids and keys, stored in the opposite order."""
    data, chosen = split([5, 3, 0, 12, 7]), replace(settings(), method="fedavg")
    straight = play(chosen, 4, data)
    turned = reversed_ids(*game(chosen, data), data, 4)
    close(turned.state.weights, straight.state.weights, 1e-12)
