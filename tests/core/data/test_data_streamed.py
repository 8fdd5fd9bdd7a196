"""Batches from Arrow files against the same rows in memory."""

import copy
import mmap
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.core.data.samples.arrow_rows import ArrowRows
from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.streamed import RowRange, StreamedBatches, StreamedSamples
from coterie.core.errors import Unstackable, UserError
from coterie.core.local_training.fit import fit
from coterie.core.local_training.row_optimizer import RowSGD
from coterie.core.methods.kit.evaluation import Evaluator
from coterie.core.methods.kit.training import LocalTraining
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors.device import computing_on, moved
from coterie.core.tensors.keys import Key


def columns(count: int, first: int = 0) -> dict[str, np.ndarray]:
    """Rows that name themselves: every field of row r tells r."""
    number = np.arange(first, first + count)
    return {
        "ids": np.stack([number % 60000, number // 7], 1).astype(np.uint16),
        "numbers": np.stack([number, number / 2, -number], 1).astype(np.float32),
        "labels": np.stack([number % 2, number % 3 == 0], 1).astype(np.uint8),
        "search": number.astype(np.int64),
    }


def as_arrow(values: np.ndarray) -> pa.Array:
    flat = pa.array(values.ravel())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if values.ndim == 2 else flat


def write(path: Path, counts: list[int], first: int = 0) -> ArrowRows:
    """A file of record batches of ``counts`` rows."""
    schema = None
    batches = []
    for count in counts:
        batches.append(pa.record_batch({k: as_arrow(v) for k, v in columns(count, first).items()}))
        first += count
    schema = batches[0].schema
    with pa.ipc.new_file(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return ArrowRows(path)


def three_clients(folder: Path) -> StreamedSamples:
    """25 rows of one file, none, and 20 rows in two ranges of another and the end of the first."""
    a, b = write(folder / "a.arrow", [10, 1, 10, 9]), write(folder / "b.arrow", [7, 16], 100)
    return StreamedSamples(
        torch.tensor([3, 5, 8]),
        ((RowRange(a, 0, 25),), (), (RowRange(b, 3, 18), RowRange(a, 25, 30))),
        {"scenario": torch.tensor([0, 1, 2])},
    )


def in_memory(ranges: list[tuple[int, int]], scenario: int) -> dict[str, torch.Tensor]:
    parts = [columns(stop - start, start) for start, stop in ranges]
    found = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
    found["ids"] = found["ids"].astype(np.int32)
    tensors = {k: torch.from_numpy(v) for k, v in found.items()}
    return tensors | {"scenario": torch.full((len(found["search"]),), scenario)}


def the_same_in_memory() -> SampleData:
    clients = [[(0, 25)], [(0, 0)], [(103, 118), (25, 30)]]
    return SampleData.from_clients([in_memory(r, j) for j, r in enumerate(clients)], [3, 5, 8])


def keys(samples: StreamedSamples, seed: int = 0) -> Key:
    return Key.from_seed(seed).fold(samples.ids)


def epoch_of(batches: StreamedBatches, client: int, epoch: int) -> dict[str, torch.Tensor]:
    count = int(batches.per_epoch[client])
    made = [batches(epoch * count + part, torch.tensor([client])) for part in range(count)]
    return {name: torch.cat([batch[name][0] for batch in made]) for name in made[0]}


def test_all_rows_in_order_are_those_in_memory(tmp_path: Path) -> None:
    streamed, resident = three_clients(tmp_path), the_same_in_memory()
    found = streamed.resident()
    assert found.ids.tolist() == streamed.ids.tolist() == [3, 5, 8]
    assert torch.equal(found.offsets, resident.offsets)
    assert torch.equal(streamed.lengths, resident.lengths)
    assert found.samples.keys() == resident.samples.keys()
    for name, values in resident.samples.items():
        assert found.samples[name].dtype == values.dtype, name
        assert torch.equal(found.samples[name], values), name


@pytest.mark.parametrize("size", [1, 4, 7, 100, None])
def test_every_row_once_an_epoch(tmp_path: Path, size: int | None) -> None:
    streamed, resident = three_clients(tmp_path), the_same_in_memory()
    batches = streamed.batches(2, size, keys(streamed))
    for client in (0, 2):
        mine = resident.take(torch.tensor([client])).samples
        for epoch in range(2):
            found = epoch_of(batches, client, epoch)
            order = found["search"].argsort()
            like = mine["search"].argsort()
            for name, values in mine.items():  # the fields of a row stay together
                assert torch.equal(found[name][order], values[like]), name


def test_batches_have_the_form_of_those_in_memory(tmp_path: Path) -> None:
    streamed = three_clients(tmp_path)
    batches = streamed.batches(torch.tensor([3, 1, 2]), 10, None)
    assert batches.per_epoch.tolist() == [3, 0, 2]
    assert batches.steps.tolist() == [9, 0, 4]
    last = batches(5, torch.tensor([0]))
    assert {k: tuple(v.shape) for k, v in last.items()} == {
        "ids": (1, 5, 2),
        "numbers": (1, 5, 3),
        "labels": (1, 5, 2),
        "search": (1, 5),
        "scenario": (1, 5),
    }
    assert last["search"].tolist() == [[20, 21, 22, 23, 24]]
    assert batches(3, torch.tensor([2]))["scenario"].unique().tolist() == [2]


def test_orders_differ_by_epoch_key_and_client(tmp_path: Path) -> None:
    streamed = three_clients(tmp_path)
    batches = streamed.batches(2, 6, keys(streamed))
    first, second = (epoch_of(batches, 0, epoch)["search"].tolist() for epoch in range(2))
    other = epoch_of(streamed.batches(1, 6, keys(streamed, 1)), 0, 0)["search"].tolist()
    again = epoch_of(streamed.batches(1, 9, keys(streamed)), 0, 0)["search"].tolist()
    assert len({tuple(order) for order in (first, second, other, sorted(first))}) == 4
    assert again == first  # the order knows nothing of the size of batches
    like = StreamedSamples(streamed.ids, streamed.ranges[:1] * 3)
    both = like.batches(1, 6, keys(streamed))
    assert epoch_of(both, 0, 0)["search"].tolist() != epoch_of(both, 1, 0)["search"].tolist()


def test_record_batches_come_in_another_order_too(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.arrow", [4] * 8)
    streamed = StreamedSamples(torch.tensor([0]), ((RowRange(rows, 0, 32),),))
    batches = streamed.batches(20, 4, keys(streamed))
    orders = {
        tuple((epoch_of(batches, 0, epoch)["search"].view(8, 4) // 4)[:, 0].tolist())
        for epoch in range(20)
    }
    assert len(orders) > 15
    within = epoch_of(batches, 0, 0)["search"].view(8, 4) % 4
    assert len({tuple(order) for order in within.tolist()}) > 4
    of_one = [[r for r in epoch_of(batches, 0, e)["search"].tolist() if r < 4] for e in range(20)]
    assert len({tuple(order) for order in of_one}) > 8


def test_any_order_of_asking_gives_the_same_batches(tmp_path: Path) -> None:
    streamed = three_clients(tmp_path)
    asked = [(n, c) for c in (0, 2) for n in range(12)]

    def number(at: tuple[int, int], batches: StreamedBatches) -> list[int]:
        return batches(at[0], torch.tensor([at[1]]))["search"].tolist()

    batches = streamed.batches(4, 7, keys(streamed))
    in_turn = {at: number(at, batches) for at in asked}
    mixed = [asked[place] for place in np.random.default_rng(0).permutation(len(asked))]
    again = streamed.batches(4, 7, keys(streamed))
    assert {at: number(at, again) for at in mixed} == in_turn
    assert {at: number(at, batches) for at in mixed} == in_turn
    for at in mixed[:5]:  # asked of nothing before
        assert number(at, streamed.batches(4, 7, keys(streamed))) == in_turn[at]


def test_more_clients_than_are_kept_open(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.arrow", [10] * 6)
    parts = tuple((RowRange(rows, 3 * j, 3 * j + 3),) for j in range(20))
    streamed = StreamedSamples(torch.arange(20), parts)
    batches = streamed.batches(2, 2, keys(streamed))
    found = [
        [batches(number, torch.tensor([j]))["search"].flatten().tolist() for number in range(4)]
        for j in range(20)
    ]
    by_number = [
        [batches(number, torch.tensor([j]))["search"].flatten().tolist() for j in range(20)]
        for number in range(4)
    ]
    assert found == [list(row) for row in zip(*by_number, strict=True)]
    assert sorted([*found[7][0], *found[7][1]]) == [21, 22, 23]


def test_clients_chosen_and_reordered_make_the_same_batches(tmp_path: Path) -> None:
    streamed = three_clients(tmp_path)
    index = torch.tensor([2, 0])
    some = streamed.take(index)
    assert some.ids.tolist() == [8, 3]
    assert some.lengths.tolist() == [20, 25]
    whole, part = streamed.batches(1, 6, keys(streamed)), some.batches(1, 6, keys(some))
    for here, there in enumerate(index.tolist()):
        mine, other = epoch_of(part, here, 0), epoch_of(whole, there, 0)
        assert all(torch.equal(mine[name], other[name]) for name in other)


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    size=st.integers(3, 12),
    least=st.integers(1, 3),
    seed=st.integers(0, 3),
    data=st.data(),
)
@settings(max_examples=60)
def test_any_cut_of_any_file(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    size: int,
    least: int,
    seed: int,
    data: st.DataObject,
) -> None:
    total = sum(counts)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    rows = write(tmp_path_factory.mktemp("cut") / "a.arrow", counts)
    streamed = StreamedSamples(torch.tensor([4]), ((RowRange(rows, start, stop),),))
    batches = streamed.batches(2, size, keys(streamed, seed), at_least=least)
    sizes = [
        batches(number, torch.tensor([0]))["search"].numel() for number in range(batches.steps[0])
    ]
    assert len(sizes) == 2 * int(batches.per_epoch[0])
    assert sum(sizes) == 2 * (stop - start)
    assert all(least <= each < size + least for each in sizes if stop - start >= least)
    if stop > start:
        assert sorted(epoch_of(batches, 0, 1)["search"].tolist()) == list(range(start, stop))


@pytest.mark.parametrize(
    ("rows", "least", "expected"),
    [
        (9, 1, [4, 4, 1]),
        (9, 2, [4, 5]),
        (10, 2, [4, 4, 2]),
        (1, 2, [1]),
        (8, 2, [4, 4]),
        (0, 2, []),
    ],
)
def test_a_last_batch_that_is_too_small_joins_the_one_before(
    tmp_path: Path, rows: int, least: int, expected: list[int]
) -> None:
    file = write(tmp_path / "a.arrow", [10])
    streamed = StreamedSamples(torch.tensor([0]), ((RowRange(file, 0, rows),),))
    batches = streamed.batches(1, 4, None, at_least=least)
    sizes = [batches(n, torch.tensor([0]))["ids"].shape[1] for n in range(len(expected))]
    assert sizes == expected
    assert batches.per_epoch.tolist() == [len(expected)]


def test_several_clients_are_trained_one_after_the_other(tmp_path: Path) -> None:
    streamed = three_clients(tmp_path)
    batches = streamed.batches(2, 6, keys(streamed))
    with pytest.raises(Unstackable):
        batches(0, torch.tensor([0, 2]))

    def loss(params: dict, batch: dict) -> torch.Tensor:
        return (params["w"] - batch["numbers"][:, 0] / 100).square().mean()

    fitted = fit(loss, {"w": torch.zeros(3)}, batches, RowSGD(), 0.1, batches.steps)
    w = torch.zeros(3, dtype=torch.float64)
    for client in (0, 2):
        for epoch in range(2):
            values = epoch_of(batches, client, epoch)["numbers"][:, 0].double() / 100
            for part in values.split(6):
                w[client] -= 0.1 * 2 * (w[client] - part).mean()
    assert torch.allclose(fitted.params["w"].double(), w, atol=1e-6)
    assert fitted.params["w"][1] == 0


class Line(nn.Module):
    """A network of one weight, with a mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        wanted = batch["labels"][:, 0].to(self.weight.dtype)
        return (self.weight * batch["numbers"][:, 0] / 50 - wanted).square().mean()


def test_local_training_and_evaluation_are_those_in_memory(tmp_path: Path) -> None:
    streamed, resident = three_clients(tmp_path), the_same_in_memory()
    module = Line()
    training = LocalTraining(module, FedAvgSettings(epochs=3, batch_size=100, lr=0.1))
    start = {"weight": torch.tensor([0.1, 0.2, 0.3])}
    trained = [
        training.train(start, training.batches(data, keys(streamed))).params["weight"]
        for data in (streamed, resident)
    ]
    assert torch.allclose(trained[0], trained[1], atol=1e-6)
    assert trained[0][1] == start["weight"][1]  # it has no samples
    assert (trained[0] != start["weight"]).sum() == 2
    measured = [Evaluator(module).of_clients(start, data).values for data in (streamed, resident)]
    for name, values in measured[0].items():
        assert torch.allclose(values, measured[1][name], atol=1e-6, equal_nan=True), name


def test_only_the_fields_that_are_asked_for(tmp_path: Path) -> None:
    whole = three_clients(tmp_path)
    some = StreamedSamples(whole.ids, whole.ranges, {}, ("labels", "ids"))
    assert list(some.batches(1, 5, None)(0, torch.tensor([0]))) == ["labels", "ids"]
    assert some.take(torch.tensor([0])).resident().samples.keys() == {"labels", "ids"}


def test_other_types_in_batches(tmp_path: Path) -> None:
    data = three_clients(tmp_path)
    wide = replace(data, kinds={"numbers": "float64", "ids": "int64"}).take(torch.tensor([0, 2]))
    for key in (None, keys(wide)):
        batch = wide.batches(1, 100, key)(0, torch.tensor([0]))
        assert batch["numbers"].dtype == torch.float64
        assert batch["ids"].dtype == torch.int64
        assert batch["labels"].dtype == torch.uint8
        order = batch["search"][0].argsort()
        expected = the_same_in_memory().take(torch.tensor([0])).samples["numbers"]
        assert torch.equal(batch["numbers"][0][order], expected.double())
    assert wide.sample_bytes() == 16 + 24 + 2 + 8 + 8


def test_bytes_of_a_sample(tmp_path: Path) -> None:
    streamed = three_clients(tmp_path)
    batch = streamed.batches(1, 1, None)(0, torch.tensor([0]))
    assert streamed.sample_bytes() == sum(v.numel() * v.element_size() for v in batch.values())
    assert StreamedSamples(torch.tensor([0]), ((),)).sample_bytes() == 0


def test_copies_are_small_and_open_nothing(tmp_path: Path) -> None:
    streamed = three_clients(tmp_path)
    batches = streamed.batches(2, 7, keys(streamed))
    before = batches(1, torch.tensor([0]))["search"]  # the file is open now
    for same in (pickle.loads(pickle.dumps(batches)), copy.deepcopy(batches)):
        assert torch.equal(same(1, torch.tensor([0]))["search"], before)
    assert len(pickle.dumps(streamed)) < 4000
    twice = pickle.loads(pickle.dumps(streamed))
    assert twice.ranges[0][0].rows is twice.ranges[2][1].rows
    assert torch.equal(
        copy.deepcopy(streamed).resident().samples["ids"], the_same_in_memory().samples["ids"]
    )


def test_files_stay_where_they_are_when_samples_move_to_a_device(tmp_path: Path) -> None:
    data = three_clients(tmp_path)
    assert moved(data, torch.device("cpu")) is data
    there = moved(data, torch.device("meta"))
    assert there.ids.device.type == there.constants["scenario"].device.type == "meta"
    assert there.ranges == data.ranges


def test_batches_are_copies_that_may_be_written_into(tmp_path: Path) -> None:
    streamed = three_clients(tmp_path)
    for key in (None, keys(streamed)):
        batches = streamed.batches(1, 30, key)
        batch = batches(0, torch.tensor([0]))
        batch["numbers"].zero_()
        assert batches(0, torch.tensor([0]))["numbers"].abs().sum() > 0


def test_a_file_that_is_written_anew_is_read_by_whoever_opens_it_later(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.arrow", [5])
    streamed = StreamedSamples(torch.tensor([0]), ((RowRange(rows, 0, 5),),))
    assert streamed.resident().samples["search"].tolist() == [0, 1, 2, 3, 4]
    write(tmp_path / "b.arrow", [5], 10)
    (tmp_path / "b.arrow").replace(tmp_path / "a.arrow")
    assert streamed.resident().samples["search"].tolist() == [0, 1, 2, 3, 4]
    assert copy.deepcopy(streamed).resident().samples["search"].tolist() == [10, 11, 12, 13, 14]


def test_pages_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = write(tmp_path / "a.arrow", [100] * 6)
    forgotten: list[int] = []
    monkeypatch.setattr(
        ArrowRows,
        "forget",
        lambda self, views: forgotten.append(int(views["search"][0]) // 100),
    )
    streamed = StreamedSamples(torch.tensor([0]), ((RowRange(rows, 0, 600),),))
    epoch_of(streamed.batches(1, 30, None), 0, 0)
    assert forgotten == [0, 1, 2, 3]


def test_advice_names_the_pages_of_the_views(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.arrow", [5000] * 3)
    views = rows.views(1)
    rows.expect(views)
    rows.forget(views)
    rows.forget(rows.nothing())
    assert views["search"].tolist() == list(range(5000, 10000))
    given: list[tuple[int, ...]] = []

    class Memory:
        def madvise(self, *arguments: int) -> None:
            given.append(arguments)

    real = rows._opened
    rows.__dict__["_opened"] = type(real)(
        cast(Any, Memory()), real.address, real.reader, real.starts
    )
    rows.expect(views)
    ((advice, start, length),) = given
    places = [v.__array_interface__["data"][0] - real.address for v in views.values()]
    ends = [at + v.nbytes for at, v in zip(places, views.values(), strict=True)]
    assert advice == mmap.MADV_WILLNEED
    assert start % mmap.PAGESIZE == 0
    assert start <= min(places) < start + mmap.PAGESIZE
    assert start + length == max(ends)


def test_rows_by_their_numbers(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.arrow", [10, 1, 10, 9], 50)
    places = np.random.default_rng(0).integers(0, 30, 100)
    found = rows.take(places)
    for name, values in columns(30, 50).items():
        np.testing.assert_array_equal(found[name], values[places])
    assert list(rows.take(places, ("ids",))) == ["ids"]
    assert rows.take(places[:0])["numbers"].shape == (0, 3)


def test_wide_ids_and_plain_columns_keep_their_values(tmp_path: Path) -> None:
    table = pa.record_batch(
        {"wide": pa.array([0, 2**32 - 1], pa.uint32()), "half": pa.array([1.5, 2.5], pa.float64())}
    )
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_batch(table)
    streamed = StreamedSamples(
        torch.tensor([0]), ((RowRange(ArrowRows(tmp_path / "a.arrow"), 0, 2),),)
    )
    for key in (None, keys(streamed)):
        batch = streamed.batches(1, None, key)(0, torch.tensor([0]))
        assert sorted(batch["wide"][0].tolist()) == [0, 2**32 - 1]
        assert batch["half"].dtype == torch.float64


def test_keys_may_be_on_another_device(tmp_path: Path) -> None:
    streamed = three_clients(tmp_path)
    clients = keys(streamed)
    with computing_on(torch.device("meta")):
        batch = streamed.batches(1, 6, clients)(0, torch.tensor([0], device="cpu"))
    assert batch["ids"].device.type == "meta"  # goes where the run computes
    assert batch["ids"].shape == (1, 6, 2)


def a_file(folder: Path, content: bytes | None) -> StreamedSamples:
    if content is not None:
        (folder / "a.arrow").write_bytes(content)
    return StreamedSamples(torch.tensor([0]), ((RowRange(ArrowRows(folder / "a.arrow"), 0, 5),),))


@pytest.mark.parametrize("content", [None, b"", b"no arrow file", b"ARROW1" + b"\0" * 300])
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    with pytest.raises(UserError, match=r"a\.arrow.*convert"):
        a_file(tmp_path, content).resident()


def test_a_file_cut_off(tmp_path: Path) -> None:
    write(tmp_path / "whole.arrow", [5])
    content = (tmp_path / "whole.arrow").read_bytes()
    for end in range(0, len(content), 37):
        with pytest.raises(UserError, match=r"a\.arrow.*convert"):
            a_file(tmp_path, content[:end]).resident()


def test_rows_and_columns_that_are_not_there(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.arrow", [4])
    with pytest.raises(UserError, match=r"a\.arrow has 4 rows, not the rows 0 to 5"):
        a_file(tmp_path, None).resident()
    one = ((RowRange(rows, 0, 4),),)
    with pytest.raises(UserError, match="no column 'other'"):
        StreamedSamples(torch.tensor([0]), one, {}, ("other",)).resident()
    words = pa.record_batch({"words": pa.array(["a", "b"]), "gaps": pa.array([1, None])})
    with pa.ipc.new_file(tmp_path / "w.arrow", words.schema) as writer:
        writer.write_batch(words)
    for name in ("words", "gaps"):
        there = ((RowRange(ArrowRows(tmp_path / "w.arrow"), 0, 2),),)
        with pytest.raises(UserError, match=f"'{name}'.*only numbers"):
            StreamedSamples(torch.tensor([0]), there, {}, (name,)).resident()


def test_lengths_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as many lists"):
        StreamedSamples(torch.tensor([0, 1]), ((),))
    with pytest.raises(ValueError, match="'scenario'"):
        StreamedSamples(torch.tensor([0]), ((),), {"scenario": torch.arange(2)})
    with pytest.raises(UserError, match="nothing to read"):
        StreamedSamples(torch.tensor([0]), ((),)).resident()
