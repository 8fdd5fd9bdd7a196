"""The benchmark of PPLR: what it times and counts is what it says."""

import copy
import gc
import json
from dataclasses import asdict, replace

import pytest
import torch
from tests.llm import split_server
from tests.llm.split_process import fork

from benchmarks.core.machine import AfterEveryOperation, live_bytes
from benchmarks.llm import measure
from benchmarks.llm import memory as memory_rows
from benchmarks.llm.federation import Shape
from benchmarks.llm.measure import bench
from benchmarks.llm.memory import Measured, memory
from benchmarks.llm.switching import Reloaded, Switched, switching
from coterie.core.errors import UserError
from coterie.llm.backbone_settings import ModelSettings
from coterie.llm.messages import UPDATE, Adapters
from coterie.llm.settings import Settings

TINY = Shape(1, 8, 2, n_items=30, history=3, batch=2)


@pytest.mark.parametrize("trained", ["lora", "all"])
def test_a_switched_backbone_is_a_copy_with_that_adapter(trained):
    switched = Switched(replace(TINY, trained=trained), 3, keep_optimizer=True)
    history = TINY.examples(4, 0).history
    scores = []
    for client in (2, 0, 1):
        switched.step(1)  # somebody else trained in between
        switched.switch(client)
        own = switched.backbone.eval().scores(history)
        fresh = copy.deepcopy(switched.backbone)
        numbers = switched.rows[client].split(
            [p.numel() for p in switched.client.adapter.parameters]
        )
        for name, part in zip(switched.client.adapter.names, numbers, strict=True):
            fresh.get_parameter(name).data = part.clone().view_as(fresh.get_parameter(name))
        assert torch.equal(own, fresh.scores(history))
        assert switched.difference(client) == 0
        scores.append(own)
    assert not torch.equal(scores[0], scores[1])


def test_a_difference_is_noticed():
    switched = Switched(TINY, 2, keep_optimizer=False)
    switched.client.adapter.load = lambda row: None  # nothing is copied in
    assert switched.difference(1) > 0


@pytest.mark.parametrize("kept", [False, True])
def test_a_switch_leaves_the_clients_state_as_a_turn_does(kept):
    by_hand, asked = (Switched(TINY, 3, keep_optimizer=kept) for _ in range(2))
    for one in (by_hand, asked):
        one.step(1)
    by_hand.switch(1)
    asked.turn(1)
    mine, other = (
        one.idle[1].exchange.store.take(torch.tensor([1])).optimizer for one in (by_hand, asked)
    )
    if not kept:
        assert mine is other is None
        return
    assert int(mine.steps) == int(other.steps) == 1
    for name, moment in mine.moments.items():
        assert torch.equal(moment["row"], other.moments[name]["row"])
        assert moment["row"].abs().sum() > 0


def test_a_turn_without_examples_changes_no_row():
    switched = Switched(TINY, 2, keep_optimizer=False)
    down = Adapters(switched.rows[1])
    idle, busy = (part[1].ask(UPDATE, down).ups[1] for part in (switched.idle, switched.busy))
    assert torch.equal(idle.row, switched.rows[1])
    assert not torch.equal(busy.row, switched.rows[1])
    assert int(busy.examples) == TINY.batch


def test_the_plain_way_loads_the_whole_state():
    plain = Reloaded(TINY)
    for number, state in enumerate(plain.states):
        for value in state.values():
            value.fill_(float(number))
    plain.switch(3)
    assert {float(p.detach().unique()) for p in plain.model.parameters()} == {3.0}


def test_rows_of_switching():
    threads = torch.get_num_threads()
    rows = list(switching([TINY], clients=4, turns=2))
    assert torch.get_num_threads() == threads
    assert [row["name"].split(";")[0] for row in rows] == [
        "switch",
        "switch, optimizer kept",
        "whole turn",
        "load_state_dict",
        "copy.deepcopy",
        "mixing",
    ]
    for row in rows:
        assert row["ratio"] == row["ours"] / row["reference"]
        assert row["max_abs_diff"] in (0, None)
    assert len({row["reference"] for row in rows}) == 1


@pytest.fixture
def all_counted():
    """Count also what there was before the tests, which is frozen otherwise."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_live_tensors_are_counted_once(all_counted):
    before = live_bytes()
    tensor = torch.zeros(1000, dtype=torch.float64)
    views = [tensor[:10], tensor.view(10, 100)]
    assert live_bytes() - before == 8000
    with AfterEveryOperation() as seen:
        tensor.neg()
    assert seen.most - before == 16_000
    del tensor, views
    assert live_bytes() == before


def test_what_vmap_has_wrapped_is_counted_once(all_counted):
    kept = []
    before, table = live_bytes(), torch.zeros(4, 250, dtype=torch.float64)
    torch.func.vmap(lambda row: kept.append(row) or row)(table)
    assert live_bytes() - before == 8000
    del table
    assert live_bytes() - before == 8000
    kept.clear()
    assert live_bytes() == before


def test_memory_grows_by_rows_and_not_by_backbones():
    few, many = (
        fork(split_server.calls, memory_rows.measure, (count, asdict(TINY)))[1].recv()
        for count in (2, 12)
    )
    assert json.loads(json.dumps(few)) == few  # so `in_a_process` brings it back
    few, many = Measured(**few), Measured(**many)
    adapter = Switched(TINY, 1, keep_optimizer=False).client.adapter
    assert few.row == many.row == 4 * adapter.size
    assert few.backbone == many.backbone == sum(4 * p.numel() for p in TINY.backbone().parameters())
    # Data and numbers of clients grow too: less than half an adapter each.
    for grown, copies in ((many.live - few.live, 2), (many.mixing - few.mixing, 7)):
        assert copies <= grown / (10 * few.row) < copies + 0.5
    assert many.peak > many.before > 0


def test_rows_of_memory():
    one = Measured(1, 1000, 100, 7000, 1200, 1800, 9000, 9500)
    many = Measured(11, 1000, 100, 7000, 3300, 8800, 11_000, 15_500)
    rows = {row["name"].partition("; ")[0]: row for row in memory_rows.rows([one, many], "x")}
    assert rows["tensors between rounds, K = 11"]["ratio"] == 1
    assert rows["tensors while adapters are mixed, K = 11"]["ratio"] == 1
    more = "more than K = 1, K = 11"
    assert rows[f"resident between rounds, {more}"]["ratio"] == 1  # 2 x 10 rows
    assert rows[f"resident, most in a round, {more}"]["ratio"] == 6 / 7  # 6,000 of 7 x 10 rows
    assert rows["peak against K deep copies, K = 11"]["ours"] == 8500 / 1e6


def test_a_failed_process_is_reported(monkeypatch):
    monkeypatch.setattr(memory_rows, "__name__", "coterie.no_such_package")
    with pytest.raises(UserError, match=r"measuring 3 clients failed: .*no_such_package"):
        list(memory([3]))


def test_all_parts_are_measured_on_the_models_of_the_settings(monkeypatch):
    def found(name):
        return lambda *given: iter([(name, *given)])

    for name in ("split", "switching", "memory"):
        monkeypatch.setattr(measure, name, found(name))
    split, (switch, shapes), memory = bench(Settings(model=ModelSettings(width=32, layers=3)))
    assert (split, switch, memory) == (("split",), "switching", ("memory",))
    assert [(s.layers, s.width, s.trained) for s in shapes[:2]] == [(3, 32, "all"), (3, 32, "lora")]
    assert shapes[0].batch == Settings().train.batch_size


def test_other_backbones_are_refused():
    with pytest.raises(UserError, match=r"--model\.name"):
        next(bench(Settings(model=ModelSettings(name="recformer"))))
