"""The benchmark of MTAL: its loop trains as ours does, its rounds are those of a run."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.assisted import large, measure, sizes, training
from benchmarks.assisted.rounds import Idle, Rounds, Use, Watched, in_this_process
from benchmarks.assisted.sizes import Size
from benchmarks.core.machine import Limits
from coterie.assisted.client import Organisation
from coterie.assisted.settings import DomainSettings, ModelSettings, Settings, TrainSettings
from coterie.core.local_training.fit import fit
from coterie.core.settings.schema import values_of
from coterie.core.tensors.keys import Key

TINY = Settings(
    data=DomainSettings(domains="uniform", count=3),
    model=ModelSettings(hidden=8, code=4),
    train=TrainSettings(epochs=2, batch_rows=70),
)
SMALL = Size("small", 30, 40, 300, 4, 7, (("profile", 3),))


def test_all_ways_train_alike():
    compared = training.Compared(SMALL, torch.float64, hidden=8)
    far = compared.differences()
    assert far.keys() == {"autograd", "loop"}
    assert max(far.values()) < 1e-12


def test_a_difference_is_noticed():
    compared = training.Compared(SMALL, torch.float64, hidden=8)
    compared.plan = replace(compared.plan, lr=2e-3)  # of the others, not of ours
    assert min(compared.differences().values()) > 1e-6


def test_the_loops_own_epoch_lowers_the_loss():
    loop = training.Compared(SMALL, torch.float64, hidden=8).loop()
    losses = [loop.epoch() for _ in range(40)]
    assert losses[-1] < losses[0]


def test_rows_are_complete(monkeypatch):
    monkeypatch.setattr(Limits, "measured", staticmethod(lambda: Limits(1e9, 1e9)))
    rows = list(training.local_training([SMALL], turns=1, epochs=1))
    assert [row["reference"] is None for row in rows] == [False] * 5 + [True]
    for row in rows[:-1]:
        assert 0 < row["ours"] < math.inf
        assert row["ratio"] == pytest.approx(row["reference"] / row["ours"])
    assert rows[-1]["ours"] == pytest.approx(4 * rows[0]["ours"] / 1e3)


def test_operations_are_counted():
    compared = training.Compared(SMALL, hidden=8)
    drawn = compared.drawn
    sparse, dense = training.operations(compared.network, drawn.inputs, drawn.pattern)
    nnz, own = compared.drawn.pattern.nnz, len(compared.drawn.inputs.values)
    inner = 3 * 6 * 30 * 8 * 4 + 4 * 30 * 8 * 3 + 4 * own * 8
    assert sparse == inner + 6 * nnz * 8
    assert dense == inner + 6 * 30 * 40 * 8


@pytest.mark.parametrize("size", [sizes.ML_100K, sizes.ML_1M], ids=["ML-100K", "ML-1M"])
def test_random_data_have_their_size(size):
    drawn = sizes.draw(size, Key.from_seed(0))
    assert drawn.pattern.nnz == size.ratings
    assert drawn.inputs.n_columns == -(-size.columns // size.organisations)
    assert len(drawn.inputs) == len(drawn.pattern) == size.rows
    assert drawn.pattern.columns.lengths.min() > 0
    stars = drawn.inputs.values.unique()
    assert stars.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    own = drawn.inputs
    places = own.places[own.columns.values] + own.columns.rows * size.columns
    cells = drawn.pattern.columns
    assert torch.isin(places, cells.values + cells.rows * size.columns).all()


def test_the_ratings_are_the_same_with_and_without_side_information():
    both, alone = (sizes.draw(s, Key.from_seed(0)) for s in (sizes.ML_100K, sizes.ML_100K_RATINGS))
    assert {name: value.shape[1] for name, value in both.inputs.sides.items()} == dict(
        profile=30, attributes=18
    )
    assert not alone.inputs.sides
    assert torch.equal(alone.inputs.values, both.inputs.values)
    assert torch.equal(alone.pattern.columns.values, both.pattern.columns.values)
    assert torch.equal(alone.values, both.values)


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_watched_round_is_that_of_a_run(monkeypatch):
    calls = []

    def counted(*args, **kwargs):
        calls.append(args[5])  # steps
        return fit(*args, **kwargs)

    monkeypatch.setattr("coterie.assisted.aae.training.fit", counted)
    watched, plain = Rounds(TINY, Watched), Rounds(TINY, Organisation)
    for rounds in (watched, plain):
        rounds.advance()
        rounds.advance()
    assert watched.run.history == plain.run.history
    work = watched.client.trained
    assert [one.steps for one in work] == calls[:6]
    assert sum(one.steps for one in work[3:]) == watched.run.history[-1]["cost/local_steps"]
    assert all(one.dense > one.sparse > 0 and one.seconds > 0 for one in work)
    assert work[0].moved == 28 * work[0].network.n_parameters * work[0].steps


def test_an_idle_round_trains_nothing_and_sends_as_much():
    idle, watched = Rounds(TINY, Idle), Rounds(TINY, Watched)
    for rounds in (idle, watched):
        rounds.advance()
        rounds.advance()
    assert "cost/local_steps" not in idle.run.history[-1]
    assert idle.run.ledger.rows() == watched.run.ledger.rows()
    losses = [row["fed/loss"] for row in idle.run.history]
    assert losses[0] == losses[1] != watched.run.history[1]["fed/loss"]


def test_rows_of_rounds(monkeypatch):
    monkeypatch.setattr(Limits, "measured", staticmethod(lambda: Limits(1e9, 1e9)))
    first, *bounds, trained, starts = measure.whole_round(TINY, turns=1)
    work = Rounds(TINY, Watched)
    work.advance()
    made = work.client.trained
    assert f"3 organisations, {sum(one.steps for one in made):,} local steps" in first["name"]
    wanted = [sum(getattr(one, name) for one in made) for name in ("sparse", "dense", "moved")]
    assert [row["reference"] * 1e6 for row in bounds] == pytest.approx(wanted)
    for row in (*bounds, trained):
        assert row["ratio"] == pytest.approx(row["reference"] / row["ours"])
    assert trained["reference"] == pytest.approx(1e3 * first["ours"])
    assert starts["reference"] == trained["ours"]
    assert starts["ours"] < trained["ours"] < trained["reference"]


def test_rows_of_the_own_part():
    one, two = measure.own_part(TINY, after=(1, 7))
    assert one["reference"] is None
    assert two["reference"] == one["ours"]
    assert 0 < two["ours"] < math.inf


@pytest.mark.usefixtures("_threads")
def test_memory_of_a_round():
    values = {k: v for k, v in values_of(TINY).items() if not k.startswith(("run.", "logger."))}
    use = Use(**in_this_process(values))
    assert 0 < use.before <= use.most
    assert 0 < use.training < use.seconds
    rounds = Rounds(TINY, Watched)
    rounds.advance()
    state = rounds.run.store.take(torch.tensor([0]))
    sizes = [one.numel() for one in state.models[0].params.values()]
    assert rounds.client.trained[0].network.n_parameters == sum(sizes)
    assert use.models == 4 * sum(one.network.n_parameters for one in rounds.client.trained)
    assert use.seconds_of(3) == pytest.approx(use.seconds + 2 * use.training)


@pytest.mark.usefixtures("_threads")
def test_a_round_on_random_ratings():
    class Few(large.RandomRatings):
        size = replace(SMALL, ratings=180)

    rounds = Rounds(large.settings_of(Few.size), Watched, Few)
    held = rounds.experiment.organisations.each
    assert len(held) == 4
    assert sum(len(one.train) for one in held) == pytest.approx(180, abs=2)
    assert "random ratings of small's size" in large.report(Few)
