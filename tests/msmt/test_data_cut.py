"""Cutting rows into scenarios and parts: shares, ids and numbers from training alone."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.aliexpress import CATEGORIES, LABELS, NUMBERS, read_aliexpress
from coterie.msmt.data.cut import Rows, cut, numbered, parts, some
from coterie.msmt.data.describe import describe, undefined
from coterie.msmt.settings import ScenarioData

KEY = Key.from_seed(4)
SETTINGS = ScenarioData(name="census-income", valid=0.2, test=0.3)


def rows_of(n=60, n_scenarios=3, seed=0):
    rng = np.random.default_rng(seed)

    def codes(high):
        return torch.as_tensor(rng.integers(-1, high, n))

    numbers = {name: torch.as_tensor(rng.normal(3, 2, n)) for name in "uv"}
    numbers["u"][rng.random(n) < 0.2] = torch.nan
    return Rows(
        categories={"a": codes(5), "b": codes(40)},
        numbers=numbers,
        scenario=torch.as_tensor(rng.permutation(np.arange(n) % n_scenarios)),
        scenarios=tuple(f"s{j}" for j in range(n_scenarios)),
        labels={name: torch.as_tensor(rng.integers(0, 2, n)).byte() for name in ("x", "y")},
        part=torch.as_tensor(rng.integers(0, 3, n)),
    )


def cut_rows(rows, scaling="range", **more):
    return cut(rows, replace(SETTINGS, **more), KEY, name="mine", scaling=scaling)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=200),
    st.floats(0.01, 0.4),
    st.floats(0.01, 0.4),
)
def test_every_row_has_one_part_and_every_group_a_training_row(group, valid, test):
    group = torch.tensor(group)
    found = parts(group, KEY, valid, test)
    for number in group.unique().tolist():
        own = found[group == number]
        n = len(own)
        counts = torch.bincount(own, minlength=3).tolist()
        assert sum(counts) == n
        assert counts[TRAIN] >= 1
        for part, share in ((VALID, valid), (TEST, test)):
            assert counts[part] <= share * n + 1
            assert counts[part] >= min(np.floor(share * n), n - 1 - counts[VALID] * (part == TEST))


def test_shares_hold_over_many_small_groups():
    group = torch.arange(6000) // 3  # 0.1 of 3 rows would always be rounded to none
    found = parts(group, KEY, 0.1, 0.2)
    shares = (torch.bincount(found) / 6000).tolist()
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.02)


def test_parts_are_drawn_by_key_and_group():
    group = torch.arange(400) % 2
    found = parts(group, KEY, 0.2, 0.2)
    assert torch.equal(parts(group, KEY, 0.2, 0.2), found)
    assert not torch.equal(parts(group, Key.from_seed(5), 0.2, 0.2), found)
    assert not torch.equal(found[group == 0], found[group == 1])
    more = torch.cat([group, torch.full((50,), 2)])
    assert torch.equal(parts(more, KEY, 0.2, 0.2)[:400], found)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 10))
def test_some_rows_of_each_group(group, most):
    group = torch.tensor(group)
    kept = some(group, most, KEY)
    assert torch.equal(kept, kept.unique())
    expected = torch.bincount(group).clamp(max=most)
    assert torch.equal(torch.bincount(group[kept], minlength=len(expected)), expected)


@given(st.lists(st.tuples(st.integers(-1, 9), st.booleans()), min_size=1, max_size=50))
def test_ids_are_numbered_by_training_rows(pairs):
    codes, trained = (torch.tensor(each) for each in zip(*pairs, strict=True))
    ids, count = numbered(codes, trained)
    known = sorted({code for code, is_trained in pairs if is_trained and code >= 0})
    place = {code: number + 1 for number, code in enumerate(known)}
    assert ids.tolist() == [place.get(code, 0) for code, _ in pairs]
    assert count == len(known) + 1


def by_part(rows):
    """Rows of each part as a task holds them: by scenario, in their order."""
    index = torch.arange(len(rows))
    return [
        torch.cat([index[(rows.part == part) & (rows.scenario == j)] for j in range(3)])
        for part in (TRAIN, VALID, TEST)
    ]


@pytest.mark.parametrize("scaling", ["range", "standard"])
def test_a_task_holds_every_row_once_in_its_part(scaling):
    rows = rows_of()
    task = cut_rows(rows, scaling)
    held = (task.clients.train, task.clients.valid, task.clients.test)
    train, *_ = by_part(rows)
    scaler = MinMaxScaler(clip=True) if scaling == "range" else StandardScaler()
    table = torch.stack(list(rows.numbers.values()), 1).numpy()
    scaler.fit(table[train])
    scaled = np.nan_to_num(scaler.transform(table))
    for index, part in zip(by_part(rows), held, strict=True):
        assert torch.equal(part.samples["scenario"], rows.scenario[index])
        assert part.lengths.tolist() == torch.bincount(rows.scenario[index], minlength=3).tolist()
        labels = torch.stack(list(rows.labels.values()), 1)[index]
        assert torch.equal(part.samples["labels"], labels)
        assert np.allclose(part.samples["numbers"], scaled[index], atol=1e-6)
        for place, codes in enumerate(rows.categories.values()):
            ids, count = numbered(codes, rows.part == TRAIN)
            assert torch.equal(part.samples["ids"][:, place], ids[index])
            assert task.schema.vocabularies[place] == count
    assert task.schema.tasks == ("x", "y")
    assert task.schema.scenarios == ("s0", "s1", "s2")
    assert task.schema.n_numbers == 2


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(["range", "standard"]))
def test_training_samples_do_not_depend_on_validation_and_test(seed, scaling):
    rows = rows_of(seed=seed)
    rng = np.random.default_rng(seed + 1)
    train = rows.part == TRAIN
    other = replace(
        rows,
        categories={
            name: torch.where(train, codes, torch.as_tensor(rng.integers(-1, 60, len(rows))))
            for name, codes in rows.categories.items()
        },
        numbers={
            name: torch.where(train, values, torch.as_tensor(rng.normal(100, 50, len(rows))))
            for name, values in rows.numbers.items()
        },
    )
    first, second = (cut_rows(each, scaling) for each in (rows, other))
    assert first.schema == second.schema
    for name, values in first.clients.train.samples.items():
        assert torch.equal(values, second.clients.train.samples[name])


def test_what_was_unknown_is_counted():
    rows = Rows(
        categories={"a": torch.tensor([1, 2, -1, 3, 1]), "b": torch.zeros(5, dtype=torch.int64)},
        numbers={"u": torch.tensor([1.0, torch.nan, 3.0, 4.0, torch.nan]).double()},
        scenario=torch.zeros(5, dtype=torch.int64),
        scenarios=("all",),
        labels={"x": torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8)},
        part=torch.tensor([TRAIN, TRAIN, TRAIN, VALID, TEST]),
    )
    task = cut_rows(rows)
    assert task.notes == (
        "values of validation and test that training lacks (id 0): a 1",
        "missing values (id 0): a 1",
        "missing numbers (0): u 2",
    )
    assert task.clients.train.samples["ids"].tolist() == [[1, 1], [2, 1], [0, 1]]
    assert task.clients.valid.samples["ids"].tolist() == [[0, 1]]
    assert task.clients.train.samples["numbers"].flatten().tolist() == [0.0, 0.0, 1.0]
    assert task.clients.valid.samples["numbers"].item() == 1.0  # beyond the range: its end
    only_numbers = cut_rows(replace(rows, categories={}))
    assert only_numbers.schema.vocabularies == ()
    assert only_numbers.clients.train.samples["ids"].shape == (3, 0)
    only_ids = cut_rows(replace(rows, numbers={}))
    assert only_ids.clients.train.samples["numbers"].shape == (3, 0)


@pytest.mark.parametrize("scaling", ["range", "standard"])
def test_a_number_without_variety_is_zero(scaling):
    same = torch.full((60,), 7.0, dtype=torch.float64)
    none = torch.full((60,), torch.nan, dtype=torch.float64)
    task = cut_rows(replace(rows_of(), numbers={"u": same, "v": none}), scaling)
    assert not bool(task.clients.train.samples["numbers"].any())


def test_shares_are_of_groups_where_there_are_any():
    rows = replace(rows_of(), part=None)
    task = cut_rows(rows)
    assert task.clients.test.lengths.tolist() == [6, 6, 6]  # 0.3 of 20
    assert task.clients.valid.lengths.tolist() == [4, 4, 4]
    one_group = cut_rows(replace(rows, group=torch.zeros(60, dtype=torch.int64)))
    assert int(one_group.clients.test.lengths.sum()) == 18


def test_the_papers_protocol_chooses_by_the_test_samples():
    rows = replace(rows_of(), part=None)
    settings = {"valid": 0.1, "paper_protocol": True}
    task = cut_rows(rows, **settings)
    assert task.clients.train.lengths.tolist() == [14, 14, 14]
    for name, values in task.clients.valid.samples.items():
        assert torch.equal(values, task.clients.test.samples[name])
    given_parts = cut_rows(rows_of(), **settings)
    assert given_parts.clients.train.lengths.sum() == (rows_of().part != TEST).sum()


def test_some_samples_of_each_scenario():
    task = cut_rows(replace(rows_of(), part=None), samples=10)
    clients = task.clients
    held = clients.train.lengths + clients.valid.lengths + clients.test.lengths
    assert held.tolist() == [10, 10, 10]


def test_a_scenario_without_training_samples_is_named():
    rows = rows_of()
    part = rows.part.masked_fill(rows.scenario == 1, TEST)
    with pytest.raises(UserError, match="scenario 's1' has no training sample"):
        cut_rows(replace(rows, part=part))


def test_scenarios_in_numbers():
    rows = rows_of()
    task = cut_rows(rows)
    table = describe(task)
    assert [row["scenario"] for row in table] == ["s0", "s1", "s2"]
    for j, row in enumerate(table):
        own = (rows.scenario == j) & (rows.part == TRAIN)
        assert row["train"] == int(own.sum())
        assert row["test"] == int(((rows.scenario == j) & (rows.part == TEST)).sum())
        assert row["x rate"] == pytest.approx(float(rows.labels["x"][own].double().mean()))
        assert not any("AUC" in name for name in row)


def test_parts_without_an_auc_are_named():
    rows = rows_of()
    one, none = rows.scenario == 0, rows.scenario == 2
    labels = {
        "x": rows.labels["x"].masked_fill(one & (rows.part == TEST), 1),
        "y": rows.labels["y"],
    }
    part = rows.part.masked_fill(none & (rows.part == VALID), TRAIN)
    assert undefined(cut_rows(rows)) == []
    assert undefined(cut_rows(replace(rows, labels=labels, part=part))) == [
        "valid part of scenario 's2' is empty: no AUC of x, y",
        "test part of scenario 's0' has one class only: no AUC of x",
    ]


def test_streamed_samples_are_described_as_those_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    names = ["search_id", *CATEGORIES, *NUMBERS, *LABELS]
    for country in ("NL", "ES"):
        (tmp_path / country).mkdir()
        for part, n in (("train", 40), ("test", 12)):
            table = rng.integers(0, 3, (n, len(names)))
            table[:, 0] = np.arange(n)
            table[:, -1] = table[:, -2] = rng.integers(0, 2, n)
            if country == "ES" and part == "test":
                table[:, -2:] = 0
            pd.DataFrame(table, columns=names).to_csv(
                tmp_path / country / f"{part}.csv", index=False
            )
    settings = ScenarioData(name="aliexpress")
    resident, streamed = (
        read_aliexpress(tmp_path, settings, KEY, streamed=each, store=tmp_path / "store")
        for each in (False, True)
    )
    assert not hasattr(streamed.clients.train, "samples")
    assert describe(streamed) == describe(resident)
    assert undefined(streamed) == undefined(resident)
    assert undefined(streamed) == [
        "test part of scenario 'ES' has one class only: no AUC of ctr, ctcvr"
    ]
