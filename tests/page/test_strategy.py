"""What clients may choose: whole ranges, or clipped ones as in the public code."""

import pytest
import torch
from tests.page.small_games import settings

from coterie.core.tensors.keys import Key
from coterie.page.answer import LearnedAnswer
from coterie.page.game import ClippedRanges, WholeRanges, strategies_of

KEY = Key.from_seed(1).fold(torch.arange(3))
COLD, WARM = torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool)
ENDS = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]])


def test_readings_choose_their_maps():
    kinds = {"recommended": WholeRanges, "literal": WholeRanges, "released": ClippedRanges}
    for reading, kind in kinds.items():
        assert type(strategies_of(settings(reading))) is kind


def test_whole_ranges_reach_both_ends_and_their_middle():
    lr, epochs = WholeRanges(settings(train={"lr": 1.0, "epochs": 5})).read(ENDS)
    assert lr.tolist() == pytest.approx([0.01, 0.1, 1.0])
    assert epochs.tolist() == [1, 3, 5]


def test_each_factor_is_read_from_its_own_number():
    """The lowest learning rate with the most epochs, and the reverse."""
    maps = WholeRanges(settings(train={"lr": 1.0, "epochs": 5}))
    lr, epochs = maps.read(torch.tensor([[-1.0, 1.0], [1.0, -1.0], [0.0, 1.0]]))
    assert lr.tolist() == pytest.approx([0.01, 1.0, 0.1])
    assert epochs.tolist() == [5, 1, 5]


def test_every_number_of_epochs_is_as_likely():
    maps = WholeRanges(settings(train={"epochs": 4}))
    raw = torch.linspace(-1, 1, 8001, dtype=torch.float64)[:-1, None].expand(-1, 2)
    counts = torch.bincount(maps.read(raw)[1])
    assert counts.tolist() == [0, 2000, 2000, 2000, 2000]


def test_what_is_played_is_remembered_as_it_is():
    maps = WholeRanges(settings())
    assert maps.choose(ENDS, WARM, KEY) is ENDS


@pytest.mark.parametrize(
    ("off", "n_action"),
    [({"tune_lr": False}, 1), ({"tune_epochs": False}, 1)],
)
def test_one_factor_of_whole_ranges(off, n_action):
    chosen = settings(train={"lr": 1.0, "epochs": 5}, **off)
    maps = WholeRanges(chosen)
    assert maps.n_action == n_action
    lr, epochs = maps.read(ENDS[:, :1])
    if "tune_lr" in off:
        assert lr.tolist() == [1.0] * 3
        assert epochs.tolist() == [1, 3, 5]
    else:
        assert lr.tolist() == pytest.approx([0.01, 0.1, 1.0])
        assert epochs.tolist() == [5] * 3


@pytest.mark.parametrize("reading", ["recommended", "released"])
def test_nothing_to_choose(reading):
    maps = strategies_of(settings(reading, tune_lr=False, tune_epochs=False))
    assert maps.n_action == 0
    lr, epochs = maps.read(torch.zeros(3, 0))
    assert (lr.tolist(), epochs.tolist()) == ([0.5] * 3, [3] * 3)


def test_a_range_of_one_learning_rate_leaves_epochs_to_choose():
    maps = WholeRanges(settings(train={"lr": 0.01}))
    assert maps.n_action == 1
    assert maps.read(ENDS[:, :1])[0].tolist() == pytest.approx([0.01] * 3)


def test_a_range_of_one_number_of_epochs_leaves_learning_rates_to_choose():
    maps = WholeRanges(settings(epochs_min=3))
    assert maps.n_action == 1
    assert maps.read(ENDS[:, :1])[1].tolist() == [3] * 3


def test_clipped_ranges_stick_to_their_upper_end():
    """As the public code does: 0.1 and 20 epochs unless an actor falls below 2·0.1 - 1."""
    maps = ClippedRanges(settings("released", train={"lr": 0.1, "epochs": 20}))
    raw = torch.tensor([[0.0, 0.0], [-0.7, 1.0], [-0.9, -0.9]])
    action = maps.choose(raw, COLD, KEY)
    lr, epochs = maps.read(action)
    assert lr.tolist() == pytest.approx([0.1, 0.1, 0.05])
    assert epochs.tolist() == [20, 20, 10]
    assert action[2].tolist() == pytest.approx([0.05, 10.0], rel=1e-5)


def test_clipped_ranges_warm_up_over_the_whole_range():
    maps = ClippedRanges(settings("released", train={"lr": 0.1, "epochs": 20}))
    key = Key.from_seed(2).fold(torch.arange(2000))
    raw = torch.zeros(2000, 2)
    lr, epochs = maps.read(maps.choose(raw, torch.ones(2000, dtype=torch.bool), key))
    assert (lr.min(), lr.max()) >= (torch.tensor(0.01), torch.tensor(0.05))
    assert lr.mean() == pytest.approx(0.055, abs=0.002)
    assert torch.bincount(epochs, minlength=21)[1:].min() > 60
    assert (epochs.min(), epochs.max()) == (1, 20)


def test_warm_and_cold_agents_side_by_side():
    maps = ClippedRanges(settings("released"))
    mixed = maps.choose(ENDS, torch.tensor([True, False, True]), KEY)
    warm, cold = maps.choose(ENDS, WARM, KEY), maps.choose(ENDS, COLD, KEY)
    assert torch.equal(mixed, torch.stack([warm[0], cold[1], warm[2]]))


GRID = torch.linspace(-1, 1, 20001, dtype=torch.float64)
EACH = Key.from_seed(0).fold(torch.arange(len(GRID)))


def clipped(lr_min, lr):
    return ClippedRanges(settings("released", train={"lr": lr, "epochs": 20}, lr_min=lr_min))


def over_the_grid(maps):
    """What agents play that say the same of both factors, from -1 to 1."""
    cold = torch.zeros(len(GRID), dtype=torch.bool)
    return maps.choose(torch.stack([GRID, GRID], dim=1), cold, EACH)


def test_clipped_ranges_hide_nine_tenths_of_the_actions():
    """Learning rate 0.1 and 20 epochs, unless tanh is below -0.8 (specification, finding 2)."""
    maps = clipped(1e-3, 0.1)
    action = over_the_grid(maps)
    lr, epochs = maps.read(action)
    above = GRID > -0.8
    assert torch.equal(lr[above], torch.full_like(lr[above], 0.1))
    assert epochs[above].unique().tolist() == [20]
    assert lr[~above].min().item() == pytest.approx(1e-3)
    assert epochs.unique().tolist() == list(range(1, 21))
    assert action[:, 1].min().item() == pytest.approx(0.2)  # floored, it would be no epoch


def test_the_range_of_shakespeare_is_not_clipped():
    maps = clipped(1e-2, 1.0)
    lr = maps.read(over_the_grid(maps))[0]
    assert (lr[0], lr[-1]) == (1e-2, 1.0)
    assert lr.diff().min() >= 0
    assert lr.diff().max() < 1e-4


def test_warm_up_draws_cover_the_ranges():
    maps, warm = clipped(1e-3, 0.1), torch.ones(len(GRID), dtype=torch.bool)
    lr, epochs = maps.read(maps.choose(GRID[:, None].expand(-1, 2), warm, EACH))
    lr = lr.sort().values
    assert 1e-3 <= lr[0] < 1.1e-3
    assert 0.0999 < lr[-1] <= 0.1
    assert lr.diff().max() < 1e-4
    assert epochs.unique(return_counts=True)[1].min() > 900


def test_weights_of_the_warm_up_are_drawn_alike():
    server = LearnedAnswer(7, settings("released"))
    agent, state = server.begin(Key.from_seed(0), torch.float64), torch.zeros(7)
    weights = torch.stack([server.choose(agent, state, Key.from_seed(s)).p for s in range(400)])
    draws = Key.from_seed(0).fold(torch.zeros(1, dtype=torch.int64)).uniform(7, dtype=torch.float64)
    assert weights[0].tolist() == (draws[0] / draws.sum()).tolist()  # not what the agent would do
    assert torch.allclose(weights.sum(1), torch.ones(400, dtype=torch.float64))
    assert weights.mean(0).std() < 0.01
    assert weights.std(0).min() > 0.05


def test_clipped_weights_never_divide_by_zero():
    server = LearnedAnswer(4, settings("released"))
    assert server.weights(torch.full((1, 4), -1.0)).tolist() == [[0.25] * 4]
    weights = server.weights(torch.tensor([[-1.0, 1.0, 0.0, 0.0]]))
    assert weights.tolist() == [[0.0, 0.5, 0.25, 0.25]]
