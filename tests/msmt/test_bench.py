"""The benchmark of PF-MSMTrec: the plain network is ours, rows are complete, operations counted."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from benchmarks.core.machine import Limits
from benchmarks.msmt import federation, large, loading, measure, published_files, steps
from benchmarks.msmt.operations import plain, projected
from benchmarks.msmt.plain import PlainMMoE
from coterie.core.data.samples.arrow_rows import ArrowRows
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.fast import projection
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.models.template import TemplateMMoE
from coterie.msmt.settings import ModelSettings

FORM = Schema(("click", "buy"), ("NL",), (3, 9, 2), 4, funnel=True)
SIZES = ModelSettings(embedding=5, experts=3, expert_layers=(6, 4), tower_layers=(3, 2))
BATCH = steps.draw(FORM, 24, Key.from_seed(0))


@pytest.mark.parametrize("norm", [True, False])
def test_the_plain_network_is_ours(norm: bool) -> None:
    sizes = replace(SIZES, mlp_norm=norm)
    assert steps.largest_difference(FORM, sizes, BATCH) < 1e-12


@pytest.mark.parametrize("norm", [True, False])
def test_all_parameters_are_compared(norm: bool) -> None:
    sizes = replace(SIZES, mlp_norm=norm)
    network = PlainMMoE(FORM, sizes)
    names = network.as_ours(lambda parameter: parameter.detach())
    ours = dict(MMoE(FORM, sizes).named_parameters())
    assert {n: v.shape for n, v in names.items()} == {n: v.shape for n, v in ours.items()}
    assert sum(v.numel() for v in ours.values()) == sum(v.numel() for v in network.parameters())


def test_a_difference_is_noticed(monkeypatch) -> None:
    given = PlainMMoE.as_ours

    def wrong(self, of):
        found = given(self, of)
        return found | {"gates.bias": found["gates.bias"] + 0.1}

    monkeypatch.setattr(PlainMMoE, "as_ours", wrong)
    assert steps.largest_difference(FORM, SIZES, BATCH) > 1e-3


def test_samples_are_in_the_vocabularies() -> None:
    ids = steps.draw(FORM, 500, Key.from_seed(1))["ids"]
    assert ids.amin(0).tolist() == [0, 0, 0]
    assert ids.amax(0).tolist() == [2, 8, 1]


def test_steps_train_both() -> None:
    with Key.from_seed(0).torch_rng():
        for make in (MMoE, PlainMMoE, TemplateMMoE):
            trained = steps.Trained(make(FORM, SIZES), BATCH)
            before = trained.network.loss(BATCH).item()
            for _ in range(60):
                trained.step()
            assert trained.network.loss(BATCH).item() < before - 0.05
            trained.evaluate()
            assert trained.network.training


@pytest.mark.parametrize(("make", "passes"), [(PlainMMoE, None), (MMoE, 1), (TemplateMMoE, 2)])
def test_operations_are_torchs_count(make, passes, monkeypatch) -> None:
    monkeypatch.setattr(projection, "SMALL", 0)  # else small ones multiply zeros
    form, sizes = steps.ALIEXPRESS, replace(SIZES, embedding=64, expert_layers=(64, 32, 16))
    batch = steps.draw(form, 512, Key.from_seed(0))
    network = make(form, replace(sizes, dropout=0.0)).train()
    addmm = flop_registry[torch.ops.aten.addmm]
    in_place = {torch.ops.aten.addmm_: lambda *shapes, out_shape=None, **_: addmm(*shapes)}
    counter = FlopCounterMode(display=False, custom_mapping=in_place)
    with counter:
        network.loss(batch).backward()
    counted = counter.get_total_flops() / 512
    bound = plain(form, sizes) if passes is None else projected(form, sizes, 512, passes)
    assert bound == pytest.approx(counted, rel=0.02)  # generators are left out


def test_the_papers_sizes() -> None:
    assert plain(steps.ALIEXPRESS, steps.PAPER) / 1e6 == pytest.approx(31.1, abs=0.1)
    ours = projected(steps.ALIEXPRESS, steps.PAPER, 2048)
    assert ours / 1e6 == pytest.approx(6.0, abs=0.1)


def test_rows_are_complete(monkeypatch) -> None:
    monkeypatch.setattr(Limits, "measured", staticmethod(lambda: Limits(1e9, 1e9)))
    rows = list(measure.local_steps(FORM, SIZES, batch_size=16, turns=1))
    assert len(rows) == 9
    assert [row["max_abs_diff"] is None for row in rows] == [False] * 2 + [True] * 7
    for row in rows:
        assert 0 < row["ours"] < math.inf
        assert row["ratio"] == pytest.approx(row["reference"] / row["ours"])
        assert row["unit"] == measure.STEP_MS


@pytest.fixture
def _few_steps(monkeypatch) -> None:
    monkeypatch.setattr(federation, "_STEPS", 4)
    monkeypatch.setattr(federation, "_BATCH", 64)


@pytest.mark.usefixtures("_few_steps")
def test_rounds_are_those_of_the_loop() -> None:
    [row] = federation.rounds(replace(SIZES, dropout=0.0), turns=1)
    assert row["max_abs_diff"] < 1e-9
    assert row["ours"] > 0
    assert row["reference"] > 0


@pytest.mark.usefixtures("_few_steps")
def test_another_loop_is_noticed(monkeypatch) -> None:
    sizes = replace(SIZES, dropout=0.0)
    monkeypatch.setattr(federation, "_DECAY", 0.1)
    loop = federation._Loop.round

    def wrong(self) -> None:
        for adam in self.adams:
            adam.param_groups[0]["weight_decay"] = 0.0
        loop(self)

    monkeypatch.setattr(federation._Loop, "round", wrong)
    assert federation.largest_difference(sizes, federation.samples()) > 1e-5


def test_coordination_is_certified(monkeypatch) -> None:
    monkeypatch.setattr(federation, "_NUMBERS", 20_000)
    dual, products = federation.coordination(turns=1)
    assert 0 <= dual["max_abs_diff"] <= 1e-8
    assert products["ours"] > 0


def test_a_file_is_read_in_another_process() -> None:
    *epochs, growth = loading.loading(samples=70_000)
    assert len(epochs) == 3
    assert all(row["ours"] > 1e4 for row in epochs)
    assert growth["ours"] < growth["reference"]


def test_a_file_holds_the_samples_that_are_asked_for(tmp_path) -> None:
    path = tmp_path / "samples.arrow"
    loading.write(path, 70_000)
    assert int(ArrowRows(path).starts[-1]) == 70_000


@pytest.mark.parametrize("form", ["joined", "zipped"])
def test_aliexpress_is_written_converted_and_started(tmp_path, monkeypatch, form: str) -> None:
    monkeypatch.setattr(published_files, "_PAGES", 40)
    for country in ("NL", "US"):
        folder = tmp_path / f"AliExpress_{country}"
        rows = published_files.write_aliexpress(folder, country, form, 1e-5)
        found = large.conversion("aliexpress", str(tmp_path), [country])
        assert found["rows"] == rows
        assert found["written"] == sum(p.stat().st_size for p in folder.glob("*.arrow"))
        text = [path for path in folder.iterdir() if path.suffix != ".arrow"]
        assert found["text"] == sum(path.stat().st_size for path in text)
        large.hollow(folder)
        assert not any(any(path.read_bytes()) for path in text)
    started = large.start("aliexpress", str(tmp_path), ["NL", "US"], steps=3)
    assert started["rows"] == 177 + 274  # nothing was read again, the text is gone


def test_tenrec_is_written_converted_and_started(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(published_files, "_BLOCK", 300)
    assert published_files.write_tenrec(tmp_path, 5e-6) == 601 + 12
    found = large.conversion("tenrec", str(tmp_path), [])
    text = (tmp_path / "ctr_data_1M.csv").read_text().splitlines()[1:]
    clicked = sum(line.split(",")[2] == "1" for line in text)
    assert found["rows"] == 3 * clicked + 12  # twice as many others are drawn
    assert large.start("tenrec", str(tmp_path), [], steps=3)["rows"] == found["rows"]
