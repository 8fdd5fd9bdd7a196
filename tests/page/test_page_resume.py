"""A run that goes on from a checkpoint ends in the same bits."""

import pytest
import torch
from tests.page.small_games import AGENT

from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.page.experiment import Experiment
from coterie.page.settings import GameSettings, Settings, TaskSettings, TrainSettings


def module(reading="recommended", method="page", **game):
    settings = Settings(
        method=method,
        reading=reading,
        rounds=7,
        data=TaskSettings(clients=5),
        train=TrainSettings(epochs=2, participation=0.8, batch_size=20),
        game=GameSettings(**game),
        client_agent=AGENT,
        server_agent=AGENT,
    )
    return FederatedRun(Experiment(settings).federation())


def advanced(one, rounds):
    for _ in range(rounds):
        one.advance()
    return one


def saved(one, path):
    torch.save(one.to_plain(), path)
    return torch.load(path, weights_only=True)


def state_of(one):
    return dict(tree.tensors(one.to_plain()))


@pytest.mark.parametrize(
    ("reading", "game"),
    [
        ("recommended", {}),
        ("recommended", {"tune_p": False, "reward_ratio": "10:1"}),
        ("recommended", {"tune_lr": False, "tune_epochs": False, "tune_p": False}),
        ("literal", {}),
        ("released", {"reward_ratio": "1:10"}),
    ],
)
def test_a_resumed_run_ends_in_the_same_bits(tmp_path, reading, game):
    whole = advanced(module(reading, **game), 7)
    first = advanced(module(reading, **game), 3)
    second = module(reading, **game)
    second.load_plain(saved(first, tmp_path / "last.ckpt"))
    advanced(second, 4)
    expected, found = state_of(whole), state_of(second)
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        same = torch.equal(value.nan_to_num(-1.0), found[path].nan_to_num(-1.0))
        assert same, path
    assert second.finished
    assert second.history == whole.history


def test_a_checkpoint_of_another_game_is_refused(tmp_path):
    first = advanced(module("literal"), 1)
    other = module(method="fedavg")
    with pytest.raises(UserError, match="does not fit this run"):
        other.load_plain(saved(first, tmp_path / "last.ckpt"))
