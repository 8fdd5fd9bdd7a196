"""Utilities and the objective that biased players share."""

import math

import pytest
import torch

from coterie.core.errors import UserError
from coterie.page.game import followers_reward, leaders_reward, utility_of
from coterie.page.settings import GameSettings

OWN, SERVER = torch.tensor([0.2, 0.8]), torch.tensor(0.6)


def shares(ratio):
    return GameSettings(reward_ratio=ratio)


@pytest.mark.parametrize("kind", ["bounded", "inverse"])
def test_utilities_fall_with_the_loss_and_stay_finite(kind):
    losses = torch.tensor([0.0, 1e-6, 0.1, 1.0, 50.0, math.inf])
    values = utility_of(kind)(losses)
    assert values.isfinite().all()
    assert (values.diff() <= 0).all()
    assert values[-1] == 0


def test_definitions():
    assert utility_of("inverse")(torch.tensor(0.5)).item() == pytest.approx(2, rel=1e-4)
    assert utility_of("bounded")(torch.tensor([0.0, 0.9])).tolist() == pytest.approx([10.0, 1.0])


def test_without_a_ratio_everybody_has_its_own():
    assert torch.equal(leaders_reward(OWN, SERVER, shares(None), False), OWN)
    assert torch.equal(followers_reward(SERVER, OWN, shares(None), False), SERVER)


@pytest.mark.parametrize(
    ("ratio", "weight"), [("10:1", 10 / 11), ("1:10", 1 / 11), ("0.5:0.5", 0.5)]
)
def test_a_shared_objective(ratio, weight):
    leaders = leaders_reward(OWN, SERVER, shares(ratio), False)
    assert leaders.tolist() == pytest.approx([weight * 0.6 + (1 - weight) * u for u in (0.2, 0.8)])
    follower = followers_reward(SERVER, OWN, shares(ratio), False)
    assert float(follower) == pytest.approx(weight * 0.6 + (1 - weight) * 0.5)
    assert float(leaders.mean()) == pytest.approx(float(follower))


def test_at_the_ends_only_one_side_counts():
    assert leaders_reward(OWN, SERVER, shares("1:0"), False).tolist() == pytest.approx([0.6, 0.6])
    assert float(followers_reward(SERVER, OWN, shares("0:1"), False)) == pytest.approx(0.5)


def test_as_released_everybody_scales_its_own():
    assert leaders_reward(OWN, SERVER, shares("10:3"), True).tolist() == pytest.approx([0.6, 2.4])
    assert float(followers_reward(SERVER, OWN, shares("10:3"), True)) == pytest.approx(6.0)


@pytest.mark.parametrize("ratio", ["", "10", "a:b", "1:2:3", "-1:2", "0:0", "nan:1", "inf:1"])
def test_ratios_that_cannot_be_read(ratio):
    with pytest.raises(UserError, match=r"'game.reward_ratio' must be global:local"):
        shares(ratio)
