"""When a run ends: in the equilibrium, or after all rounds."""

import math

import pytest

from coterie.core.run.driver import FederatedRun
from coterie.page.experiment import Experiment
from coterie.page.game import UTILITIES, settled
from coterie.page.settings import GameSettings, Settings, TaskSettings, TrainSettings

GAME = GameSettings(patience=4, tolerance=0.01)


def history(server, clients):
    return [dict(zip(UTILITIES, pair, strict=True)) for pair in zip(server, clients, strict=True)]


def test_rest_needs_two_windows():
    still = history([0.5] * 8, [0.7] * 8)
    assert settled(still, GAME)
    assert not settled(still[1:], GAME)


@pytest.mark.parametrize("who", [0, 1])
def test_either_side_may_move_on(who):
    moving = [0.5 + 0.01 * t for t in range(8)]  # by 0.04 from window to window
    sides = [[0.5] * 8, [0.5] * 8]
    sides[who] = moving
    assert not settled(history(*sides), GAME)
    sides[who] = [0.5 + 0.001 * t for t in range(8)]
    assert settled(history(*sides), GAME)


def test_noise_that_averages_out_is_rest():
    noisy = [0.5 + 0.2 * (-1) ** t for t in range(8)]
    assert settled(history(noisy, noisy), GAME)


def test_only_the_last_windows_count():
    rising = [0.1 * t for t in range(5)] + [0.5] * 8
    assert settled(history(rising, rising), GAME)


def test_a_stage_without_moves_or_with_nan_is_no_rest():
    gap = history([0.5] * 8, [0.5] * 8)
    gap[3] = {}
    assert not settled(gap, GAME)
    assert not settled(history([0.5] * 7 + [math.nan], [0.5] * 8), GAME)


def run(tolerance, reading="recommended", evaluate_every=1):
    settings = Settings(
        reading=reading,
        rounds=12,
        data=TaskSettings(clients=3),
        train=TrainSettings(epochs=1, batch_size=50, evaluate_every=evaluate_every),
        game=GameSettings(patience=3, tolerance=tolerance),
    )
    experiment = Experiment(settings)
    module = FederatedRun(experiment.federation())
    while not module.finished:
        module.advance()
    return experiment, module


def test_a_game_at_rest_ends():
    experiment, module = run(tolerance=1.0)
    assert module.round == 6
    assert experiment.notes(module) == [
        "no utility moved any more: the game came to rest in round 6"
    ]


def test_the_end_of_a_game_at_rest_is_evaluated():
    _, module = run(tolerance=1.0, evaluate_every=4)
    assert module.round == 8
    assert [i for i, row in enumerate(module.history, 1) if "eval/accuracy" in row] == [4, 8]


def test_a_game_that_moves_on_takes_all_rounds():
    experiment, module = run(tolerance=0.0)
    assert module.round == 12
    assert experiment.notes(module) == ["the game had not come to rest after 12 rounds"]


def test_the_public_code_plays_all_rounds():
    experiment, module = run(tolerance=1.0, reading="released")
    assert "after 12 rounds; all were played" in experiment.notes(module)[0]
    assert settled(module.history, GameSettings(patience=3, tolerance=1.0))
    assert module.round == 12
