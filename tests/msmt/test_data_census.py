"""Census-Income: what is read of its 42 columns, and what is not."""

import gzip

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.census import COLUMNS, NUMBERS, counts, read_census
from coterie.msmt.data.describe import undefined
from coterie.msmt.settings import ScenarioData

KEY = Key.from_seed(8)
WORKERS = (
    *("Not in universe", "Private", "Self-employed-incorporated", "Local government"),
    *("Never worked", "Self-employed-not incorporated", "Federal government", "Without pay"),
)
GROUPS = {"Not in universe": "none", "Never worked": "none", "Without pay": "none"} | {
    "Private": "private",
    "Self-employed-incorporated": "self-employed",
    "Self-employed-not incorporated": "self-employed",
    "Local government": "government",
    "Federal government": "government",
}


def people(n=80, seed=0):
    """Invented rows, as a table of text."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({name: [f"{name} {k}" for k in rng.integers(0, 4, n)] for name in COLUMNS})
    for name in (*NUMBERS, "weight"):
        table[name] = rng.integers(0, 90, n).astype(str)
    table["worker"] = [WORKERS[k % len(WORKERS)] for k in range(n)]
    table["marital"] = rng.choice(["Never married", "Divorced", "Widowed"], n)
    table["income"] = rng.choice(["- 50000.", "50000+."], n)
    return table


def write(folder, table, name="census-income.test"):
    folder.mkdir(exist_ok=True)
    text = "".join(", ".join(row) + "\n" for row in table.itertuples(index=False))
    if name.endswith(".gz"):
        (folder / name).write_bytes(gzip.compress(text.encode()))
    else:
        (folder / name).write_text(text)
    return folder


def read(folder, **more):
    return read_census(folder, ScenarioData(name="census-income", **more), KEY)


def all_samples(task, name):
    clients = task.clients
    return torch.cat([p.samples[name] for p in (clients.train, clients.valid, clients.test)])


def test_scenarios_and_labels_are_those_of_the_file(tmp_path):
    table = people()
    task = read(write(tmp_path, table, "census-income.test.gz"))
    assert task.schema.scenarios == ("government", "none", "private", "self-employed")
    assert task.schema.tasks == ("income", "marital")
    assert not task.schema.funnel
    groups = table["worker"].map(GROUPS)
    for place, scenario in enumerate(task.schema.scenarios):
        own = all_samples(task, "scenario") == place
        expected = table[groups == scenario]
        assert int(own.sum()) == len(expected)
        assert all_samples(task, "labels")[own].sum(0).tolist() == [
            (expected["income"] == "50000+.").sum(),
            (expected["marital"] == "Never married").sum(),
        ]
    assert task.clients.train.lengths.tolist() == [16, 24, 8, 16]


def test_numbers_are_scaled_and_money_is_by_its_logarithm(tmp_path):
    table = people()
    task = read(write(tmp_path, table), scenario="sex")
    assert task.schema.n_numbers == len(NUMBERS) == 7
    order, n_train = task_order(task, table), int(task.clients.lengths.sum())
    for place, name in enumerate(name for name in COLUMNS if name in NUMBERS):
        values = table[name].astype(float).to_numpy()[order]
        if name in ("wage_per_hour", "capital_gains", "capital_losses", "dividends"):
            values = np.log1p(values)
        low, high = values[:n_train].min(), values[:n_train].max()
        expected = np.clip((values - low) / (high - low), 0, 1)
        assert np.allclose(all_samples(task, "numbers")[:, place], expected, atol=1e-6)


def task_order(task, table):
    """Rows of the table in the order of the task's samples, by their values of three columns."""
    names = [name for name in COLUMNS if name not in NOT_READ | {"sex", *NUMBERS}]
    known = {tuple(row): k for k, row in enumerate(table[names].itertuples(index=False))}
    words = {name: sorted(table[name].unique()) for name in names}
    assert task.schema.vocabularies == tuple(len(words[name]) + 1 for name in names)
    return [
        known[tuple(words[name][i - 1] for name, i in zip(names, row, strict=True))]
        for row in all_samples(task, "ids").tolist()
    ]


NOT_READ = {"income", "marital", "weight", "tax_filer", "household", "household_detail"}


def test_columns_that_tell_the_labels_are_no_inputs(tmp_path):
    table = people()
    before = read(write(tmp_path / "a", table))
    for name in NOT_READ - {"income", "marital"} | {"worker"}:
        other = table.copy()
        other[name] = other[name] if name == "worker" else "0.5"
        after = read(write(tmp_path / "b", other))
        for field in ("ids", "numbers"):
            assert torch.equal(all_samples(after, field), all_samples(before, field))
    assert len(before.schema.vocabularies) == 42 - 6 - 7 - 1


@pytest.mark.parametrize("scenario", ["worker", "race", "sex"])
def test_what_tells_scenarios_apart_is_no_input(tmp_path, scenario):
    table = people()
    task = read(write(tmp_path, table), scenario=scenario)
    assert len(task.schema.vocabularies) == 42 - 6 - 7 - 1
    if scenario != "worker":
        assert task.schema.scenarios == tuple(sorted(table[scenario].unique()))


def test_both_halves_are_put_together(tmp_path):
    write(tmp_path, people(40), "census-income.data")
    write(tmp_path, people(24, 1), "census-income.test.gz")
    assert len(all_samples(read(tmp_path), "labels")) == 64
    assert counts(tmp_path) == [
        {"part": "census-income.data", "samples": 40},
        {"part": "census-income.test.gz", "samples": 24},
    ]


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("income", "60000", "line 6: the income is '60000', not '50000\\+.' or '- 50000.'"),
        ("worker", "Pirate", "line 6: 'Pirate' is no class of worker"),
        ("age", "old", "line 6: column 'age' is 'old', not a number"),
        ("race", " ", "line 6: column 'race' is empty"),
    ],
)
def test_faults_are_one_line(tmp_path, column, value, what):
    write(tmp_path, people(40), "census-income.data")
    table = people(40, 1)
    table.loc[5, column] = value
    write(tmp_path, table)
    with pytest.raises(UserError, match=rf"census-income.test, {what}"):
        read(tmp_path)


def test_missing_and_cut_files(tmp_path):
    with pytest.raises(UserError, match=r"has no census-income.data or census-income.test"):
        read(tmp_path)
    write(tmp_path, people(5))
    path = tmp_path / "census-income.test"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(UserError, match="cut off"):
        read(tmp_path)


@pytest.mark.real_data
def test_the_public_half(data_root):
    folder = data_root / "census-income"
    if not folder.is_dir():
        pytest.skip(f"needs census-income in {data_root}")
    task = read_census(folder, ScenarioData(name="census-income"), KEY)
    assert len(all_samples(task, "labels")) == 99762
    assert int(all_samples(task, "labels")[:, 0].sum()) == 6186
    names = ("government", "none", "private", "self-employed")
    assert task.schema.scenarios == names
    assert all_samples(task, "scenario").bincount().tolist() == [7405, 50358, 36071, 5928]
    assert undefined(task) == []
