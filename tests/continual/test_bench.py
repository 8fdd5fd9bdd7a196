"""The benchmark: equal results strictly, speed loosely, and what it says of itself."""

import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks.continual import measure, sizes
from benchmarks.continual.large import line
from benchmarks.continual.loop import ClientLoop, LoopByHand
from benchmarks.continual.pfl_peer import PflLoop
from benchmarks.continual.rounds import (
    Engine,
    Workload,
    largest_difference,
    leave_one_out,
    random_block,
    workload,
)
from benchmarks.core.trainer import trainer_overhead
from coterie.continual.messages import UPDATE
from coterie.continual.settings import ModelSettings, ReplaySettings, Settings, resolve
from coterie.core.errors import UserError
from coterie.core.registry.papers import load
from coterie.core.settings.sections import EngineSettings, RunSettings
from coterie.core.tensors.keys import Key


def small(n_users=60, n_items=120):
    key = Key.from_seed(4)
    base = random_block(key.fold(0), torch.arange(n_users), n_items, 20 * n_users)
    later = random_block(key.fold(1), torch.arange(n_users // 2, 2 * n_users), n_items, 600)
    return Workload("small", [base, later], [n_items, n_items + 4])


def chosen(**changes):
    """Settings under which several batches are trained and something is replayed."""
    made = Settings(
        model=ModelSettings(dim=8, lr=0.5, batch_size=32, init_std=0.3),
        replay=ReplaySettings(top_n=10, epsilon=0.002, lambda_kd=0.5),
    )
    return resolve(replace(made, **changes))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-12)])
def test_the_loop_and_the_engine_give_the_same_table(dtype, tolerance):
    engine = Engine(chosen(engine=EngineSettings(dtype=dtype)), small())
    assert largest_difference(engine) < tolerance
    engine.train()
    assert largest_difference(engine) < tolerance
    assert largest_difference(engine, LoopByHand) < tolerance
    engine.next_block()
    assert largest_difference(engine) < tolerance
    replies = engine.cohort(100).ask(UPDATE, engine.down())
    replayed = replies.up.replayed
    assert bool(((replayed > 0) & (replayed < 10)).any())  # the memory is in use, and adapts


def test_a_wrong_loop_is_noticed():
    engine = Engine(chosen(), small())
    engine.settings = replace(engine.settings, model=ModelSettings(dim=8, lr=0.4, batch_size=32))
    assert largest_difference(engine) > 1e-3


def test_the_loop_draws_fresh_negatives_and_every_sample_once():
    work = small()
    train = work.blocks[0].train
    loop = ClientLoop(chosen(), train, 120, torch.zeros(60, 8), seed=1)
    for client, positives in enumerate(train.tolists()[:5]):
        item, label = (torch.cat(part) for part in zip(*loop._draw(client), strict=True))
        assert sorted(item[label == 1].tolist()) == sorted(positives)
        negatives = item[label == 0].tolist()
        assert len(negatives) == 4 * len(positives)
        assert not set(negatives) & set(positives)
        again, _ = (torch.cat(part) for part in zip(*loop._draw(client), strict=True))
        assert not torch.equal(item, again)


@pytest.mark.long
def test_the_engine_is_faster(monkeypatch):
    monkeypatch.setattr("coterie.continual.compiling.MANY_ITEMS", 0)
    monkeypatch.setitem(sys.modules, "pfl", None)  # no rows of it
    rows = list(measure.rounds(chosen(), small(100), turns=1))
    base, by_hand, without, _, products, moved, later = rows[:7]
    for one in (base, by_hand, without, later):
        assert one["ratio"] > 1
        assert one["max_abs_diff"] < 2e-5
    assert base["ratio"] > by_hand["ratio"]  # the loop by hand is the faster one
    assert base["ours"] != without["ours"]
    for bound in (products, moved):
        assert 0 < bound["reference"] < base["ours"]


def test_pfl_gives_the_same_table():
    pytest.importorskip("pfl", reason="pfl-research is not installed")
    engine = Engine(chosen(), small())
    engine.train()
    assert largest_difference(engine, PflLoop) < 1e-5
    # The same draws twice, of one batch a client: vectors are kept from round to round.
    whole = replace(chosen(), model=replace(chosen().model, batch_size=1 << 20))
    engine = Engine(whole, small())
    table = engine.down().items
    loop, peer = engine.loop(), engine.loop(PflLoop)
    drawn = [[torch.cat(part) for part in zip(*loop._draw(c), strict=True)] for c in range(60)]
    for _ in range(2):
        table, other = (one.round(table, lambda c: [drawn[c]]) for one in (loop, peer))
        torch.testing.assert_close(other, table, rtol=0, atol=1e-5)
        torch.testing.assert_close(peer.users, loop.users, rtol=0, atol=1e-5)


def test_pfl_has_a_row_in_the_base_block_alone():
    pytest.importorskip("pfl", reason="pfl-research is not installed")
    engine = Engine(chosen(), small())
    assert any("pfl" in row["name"] for row in measure.compare("base", engine, turns=1))
    engine.train()
    engine.next_block()
    assert not any("pfl" in row["name"] for row in measure.compare("next", engine, turns=1))


@pytest.mark.parametrize("mean", [5, 60])
def test_random_blocks(mean):
    block = random_block(Key.from_seed(0), torch.arange(300), 400, 300 * mean)
    assert block.train.values.numel() == pytest.approx(300 * mean, rel=0.1)
    assert all(len(set(row)) == len(row) for row in block.train.tolists())
    assert 0 <= int(block.train.values.min()) <= int(block.train.values.max()) < 400


def test_one_item_of_each_client_is_held_out_for_each_part():
    block = random_block(Key.from_seed(0), torch.arange(40), 400, 300)
    parts = leave_one_out(block)
    columns = zip(*(part.tolists() for part in (parts.valid, parts.test, parts.train)), strict=True)
    assert [[*valid, *test, *train] for valid, test, train in columns] == block.train.tolists()
    assert parts.valid.lengths.tolist() == parts.test.lengths.tolist() == [1] * 40


def test_random_data_stands_in_and_says_so(monkeypatch):
    made = workload(chosen())
    assert made.name == "random data of ML-100K's size"
    assert [len(block.ids) for block in made.blocks] == [587, 217]
    assert made.blocks[0].train.values.numel() == pytest.approx(46_552, rel=0.02)

    def fail(*_):
        raise UserError("there is no network")

    monkeypatch.setattr("benchmarks.continual.rounds.load_all", fail)
    absent = workload(replace(chosen(), data=replace(Settings().data, name="ml-100k")))
    assert absent.name == "random data of ML-100K's size (there is no network)"


@pytest.mark.long
def test_sizes_are_measured_in_a_process_and_drawn(tmp_path):
    (row,) = sizes.grow(chosen(engine=EngineSettings(chunk=16)), [50])
    assert row["clients"] == 50
    assert row["ours"] > 0
    assert row["peak MB"] > row["data and state MB"] > 0
    assert min(row["seconds a validation"], row["seconds a test"]) > 0
    assert line(row).startswith("50 clients, ")
    rows = [row, row | {"clients": 500}]
    path = measure.plot(rows, tmp_path / "new" / "scaling.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_failed_process_is_reported(monkeypatch):
    monkeypatch.setattr(sizes, "__name__", "coterie.no_such_package")
    with pytest.raises(UserError, match=r"measuring 10 clients failed: .*no_such_package"):
        list(sizes.grow(chosen(), [10]))


@pytest.mark.long
def test_all_rows(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pfl", None)  # no rows of it
    monkeypatch.setattr(measure, "workload", lambda settings: small())
    monkeypatch.setattr(measure, "SIZES", (50,))
    monkeypatch.setattr(measure, "CATALOGUES", (1_000,))
    monkeypatch.setattr(measure, "FEW", 50)
    monkeypatch.setattr(measure, "_LARGE", 60)
    monkeypatch.setattr(measure, "lists", partial(measure.lists, 250, 60))
    monkeypatch.setattr(measure.own_files, "measure", lambda: iter([{"name": "own files"}]))
    monkeypatch.setattr(measure, "rounds", partial(measure.rounds, turns=1))
    monkeypatch.setattr(measure, "trainer_overhead", partial(trainer_overhead, 5, turns=1))
    # That they measure in a process has a test of its own.
    monkeypatch.setattr(sizes, "in_a_process", lambda name, what, *rest: load(name)(*rest))
    settings = replace(chosen(), run=RunSettings(out=str(tmp_path)))
    rows = list(measure.bench(settings))
    assert len(rows) == 19
    [added] = [row for row in rows if row["name"] == "what the Trainer adds to a round"]
    assert added["reference"] == 5.0
    assert rows[-7]["name"].startswith("1,000 items, 50 clients")
    assert rows[-6]["name"].startswith("everybody's list, 250 users, 60 items")
    assert rows[-6]["max_abs_diff"] <= 1.01e-4  # scores are written with four digits
    assert rows[-2]["name"] == "60 clients; two processes, one"
    assert rows[-2]["max_abs_diff"] == 0
    assert all(row["reference"] > 0 for row in rows[-3:-1])
    assert rows[-1] == {"name": "own files"}
    assert (tmp_path / "f3crec" / "bench" / "scaling.png").is_file()


def test_other_backbones_are_refused():
    settings = replace(Settings(), model=ModelSettings(name="pfedrec"))
    with pytest.raises(UserError, match=r"--model\.name"):
        next(measure.bench(settings))
