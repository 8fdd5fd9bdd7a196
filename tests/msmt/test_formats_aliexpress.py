"""AliExpress in both layouts, against pandas' own join, with the traps of the real files."""

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.streamed import StreamedSamples
from coterie.core.data.sources import arrow_samples, csv_blocks
from coterie.core.errors import UserError
from coterie.core.settings.configuration import configure
from coterie.core.tensors.keys import Key
from coterie.core.training.train import train
from coterie.msmt.comparison import TABLE
from coterie.msmt.data.aliexpress import CATEGORIES, NUMBERS, read_aliexpress
from coterie.msmt.data.loaded import Pages
from coterie.msmt.data.task import Task
from coterie.msmt.paper import PAPER as MSMT
from coterie.msmt.settings import ScenarioData

KEY = Key.from_seed(0)
SETTINGS = ScenarioData(name="aliexpress")
PAPER = ScenarioData(name="aliexpress", paper_protocol=True)
COLUMNS = ["search_id", *CATEGORIES, *NUMBERS, "click", "conversion"]
PAGE_IDS, PAGE_NUMBERS = [*range(2, 9), 32, 33], list(range(9, 32))
ITEM_IDS = [19, 34, 35, 36, 40, 41, 42]
ITEM_NUMBERS = [n for n in range(2, 49) if n not in ITEM_IDS]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_blocks, "_BLOCK", 4000)
    monkeypatch.setattr(arrow_samples, "ROWS", 16)


def pages_and_items(seed: int, n_pages: int, first: int = 1) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The published files: a page a row, and one to eight products a page; pages not in order."""
    rng = np.random.default_rng(seed)
    ids = first + rng.permutation(n_pages)
    users = pd.DataFrame({1: ids}, dtype=int)
    for n in range(2, 34):
        small = rng.integers(0, 3 + n, n_pages)
        users[n] = small if n in PAGE_IDS else rng.random(n_pages).round(4)
    again = np.repeat(ids, rng.integers(1, 9, n_pages))
    items = pd.DataFrame({1: again}, dtype=int)
    for n in range(2, 49):
        small = rng.integers(0, n, len(again))
        items[n] = small if n in ITEM_IDS else rng.random(len(again)).round(5)
    items[49] = rng.choice([0, 1, 2], len(again), p=[0.6, 0.3, 0.1])
    return users, items


def joined(users: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """What MTReclib makes of them, by pandas."""
    left, right = users.add_prefix("user_"), items.add_prefix("item_")
    both = right.merge(left, left_on="item_1", right_on="user_1", how="inner")
    categories = [f"user_{n}" for n in PAGE_IDS] + [f"item_{n}" for n in ITEM_IDS]
    numbers = [f"user_{n}" for n in PAGE_NUMBERS] + [f"item_{n}" for n in ITEM_NUMBERS]
    found = both[["item_1", *categories, *numbers]].copy()
    found["click"] = (both["item_49"] > 0).astype(int)
    found["conversion"] = (both["item_49"] > 1).astype(int)
    return found.set_axis(COLUMNS, axis=1)


def published(folder: Path, seed: int = 0, ending: str = ".zip") -> dict[str, pd.DataFrame]:
    folder.mkdir(parents=True, exist_ok=True)
    parts = {}
    for part, n_pages, first in (("train", 40, 1), ("test", 15, 1000)):
        users, items = pages_and_items(seed + first, n_pages, first)
        for kind, table in (("user", users), ("item", items)):
            write(folder / f"nl_{kind}_{part}{ending}", table.to_csv(header=False, index=False))
        parts[part] = joined(users, items)
    return parts


def write(path: Path, content: str) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(path.with_suffix(".csv").name, content)
    else:
        path.write_text(content)


def processed(folder: Path, seed: int = 0) -> dict[str, pd.DataFrame]:
    folder.mkdir(parents=True, exist_ok=True)
    parts = {}
    for part, n_pages, first in (("train", 40, 1), ("test", 15, 1000)):
        parts[part] = joined(*pages_and_items(seed + first, n_pages, first))
        parts[part].to_csv(folder / f"{part}.csv", index=False)
    return parts


def rows(task: Task, part: str, place: int = 0) -> dict[str, torch.Tensor]:
    """Samples of a scenario, in their order."""
    samples: Any = getattr(task.clients, part)
    if isinstance(samples, StreamedSamples):
        samples = samples.resident()
    return samples.take(torch.tensor([place])).samples


def expected(table: pd.DataFrame, train: pd.DataFrame) -> dict[str, torch.Tensor]:
    ids = torch.tensor(table[list(CATEGORIES)].to_numpy()) + 1
    for column, name in enumerate(CATEGORIES):
        known = torch.tensor(np.isin(table[name], train[name]))
        ids[:, column] = torch.where(known, ids[:, column], 0)
    return {
        "ids": ids.int(),
        "numbers": torch.tensor(table[list(NUMBERS)].to_numpy(np.float32)),
        "labels": torch.tensor(table[["click", "conversion"]].to_numpy(np.uint8)),
    }


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, values in wanted.items():
        assert found[name].dtype == values.dtype, name
        assert torch.equal(found[name], values), name


def last_tenth(table: pd.DataFrame, share: float = 0.1) -> np.ndarray:
    order = table["search_id"].drop_duplicates()
    return np.isin(table["search_id"], order[len(order) - round(share * len(order)) :])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("make", [processed, published])
def test_rows_and_parts_of_both_layouts(tmp_path: Path, make: Callable, streamed: bool) -> None:
    parts = make(tmp_path / "AliExpress_NL")
    task = read_aliexpress(tmp_path, SETTINGS, KEY, streamed=streamed)
    train, off = parts["train"], last_tenth(parts["train"])
    assert 0 < off.sum() < len(off) / 3
    assert_same(rows(task, "train"), expected(train[~off], train))
    assert_same(rows(task, "valid"), expected(train[off], train))
    assert_same(rows(task, "test"), expected(parts["test"], train))
    assert isinstance(task.clients.train, StreamedSamples if streamed else SampleData)
    assert task.schema.scenarios == ("NL",)
    assert task.schema.vocabularies == tuple(train[c].max() + 2 for c in CATEGORIES)
    assert task.schema.n_numbers == 63
    assert task.schema.funnel
    assert task.schema.tasks == ("ctr", "ctcvr")
    assert rows(task, "train")["scenario"].unique().tolist() == [0]
    assert any("ids that training lacks" in note for note in task.notes)
    assert any("not there: ES, FR, US" in note for note in task.notes)


@pytest.mark.parametrize("ending", [".csv", ".zip"])
def test_layouts_and_endings_agree(tmp_path: Path, ending: str) -> None:
    published(tmp_path / "a" / "nl", ending=ending)
    parts = published(tmp_path / "b" / "aliexpress_NL_datasets")
    tasks = [read_aliexpress(tmp_path / each, SETTINGS, KEY, streamed=False) for each in "ab"]
    for part in ("train", "valid", "test"):
        assert_same(rows(tasks[0], part), rows(tasks[1], part))
    assert len(rows(tasks[0], "test")["ids"]) == len(parts["test"])


@pytest.mark.parametrize("streamed", [False, True])
def test_several_countries_have_one_vocabulary(tmp_path: Path, streamed: bool) -> None:
    parts = {c: processed(tmp_path / f"AliExpress_{c}", n) for n, c in enumerate(("US", "NL"))}
    parts["NL"]["train"].loc[3, "categorical_2"] = 70000  # more than 16 bits
    parts["NL"]["train"].to_csv(tmp_path / "AliExpress_NL" / "train.csv", index=False)
    task = read_aliexpress(tmp_path, SETTINGS, KEY, streamed=streamed)
    assert task.schema.scenarios == ("NL", "US")
    most = [max(parts[c]["train"][name].max() for c in parts) + 2 for name in CATEGORIES]
    assert task.schema.vocabularies == tuple(most)
    for place, country in enumerate(("NL", "US")):
        train = parts[country]["train"]
        assert_same(rows(task, "test", place), expected(parts[country]["test"], train))
        assert rows(task, "test", place)["scenario"].unique().tolist() == [place]
    one = read_aliexpress(tmp_path, SETTINGS, KEY, streamed=streamed, countries=["US"])
    assert one.schema.scenarios == ("US",)


@pytest.mark.parametrize("streamed", [False, True])
def test_paper_protocol_chooses_by_the_test_samples(tmp_path: Path, streamed: bool) -> None:
    parts = processed(tmp_path / "AliExpress_NL")
    task = read_aliexpress(tmp_path, PAPER, KEY, streamed=streamed)
    assert int(task.clients.train.lengths[0]) == len(parts["train"])
    assert_same(rows(task, "valid"), expected(parts["test"], parts["train"]))


def test_other_numbers_and_another_store(tmp_path: Path) -> None:
    parts = processed(tmp_path / "data" / "AliExpress_NL")
    store = tmp_path / "store"
    for streamed in (False, True):
        task = read_aliexpress(
            tmp_path / "data", SETTINGS, KEY, torch.float64, streamed=streamed, store=store
        )
        numbers = task.clients.test.batches(1, None, None)(0, torch.tensor([0]))["numbers"][0]
        assert numbers.dtype == torch.float64
        table = parts["test"][list(NUMBERS)].to_numpy(np.float32)
        assert torch.equal(numbers, torch.tensor(table).double())
    assert sorted(p.name for p in (store / "AliExpress_NL").iterdir()) == [
        "test.arrow",
        "train.arrow",
    ]
    assert len(list((tmp_path / "data" / "AliExpress_NL").iterdir())) == 2


def test_small_files_are_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processed(tmp_path / "AliExpress_NL")
    assert isinstance(read_aliexpress(tmp_path, SETTINGS, KEY).clients.train, SampleData)
    monkeypatch.setattr("coterie.msmt.data.loaded.BIG", 10_000)
    assert isinstance(read_aliexpress(tmp_path, SETTINGS, KEY).clients.train, StreamedSamples)


def test_files_are_compared_without_a_pooled_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processed(tmp_path / "data" / "aliexpress" / "AliExpress_NL")
    processed(tmp_path / "data" / "aliexpress" / "AliExpress_ES", 1)
    monkeypatch.setattr("coterie.msmt.data.loaded.BIG", 10_000)
    flags = {"data": "aliexpress", "data.root": tmp_path / "data", "compare": "true", "rounds": 1}
    flags |= {"model.embedding": 2, "model.expert_layers": "[4,4]", "model.tower_layers": "[4]"}
    flags |= {"run.out": tmp_path, "run.progress": "false", "logger.wandb": "off"}
    words = [f"--{name}={value}" for name, value in flags.items()]
    text = (train(MSMT, configure(MSMT, words).settings) / TABLE).read_text()
    assert "| PF-MSMTrec | alone | FedAvg |\n" in text
    assert text.endswith("\npooled is left out: it needs all samples in memory.\n")


def test_products_without_a_page_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "AliExpress_NL"
    published(folder, ending=".csv")
    users = (folder / "nl_user_train.csv").read_text().splitlines(keepends=True)
    gone = users.pop(7).split(",")[0]
    (folder / "nl_user_train.csv").write_text("".join(users))
    items = (folder / "nl_item_train.csv").read_text().splitlines()
    count = sum(line.split(",")[0] == gone for line in items)
    for streamed in (False, True, True):  # the second time it is converted before
        task = read_aliexpress(tmp_path, SETTINGS, KEY, streamed=streamed)
        held = task.clients.train.lengths + task.clients.valid.lengths
        assert int(held[0]) == len(items) - count
        assert f"NL train: {count} products of no result page are left out" in task.notes


def test_another_file_of_pages_makes_the_conversion_stale(tmp_path: Path) -> None:
    folder = tmp_path / "AliExpress_NL"
    published(folder, ending=".csv")
    before = rows(read_aliexpress(tmp_path, SETTINGS, KEY, streamed=True), "train")
    users = pd.read_csv(folder / "nl_user_train.csv", header=None)
    users[8] = users[8] / 2  # column 9, the first number
    users.to_csv(folder / "nl_user_train.csv", header=False, index=False)
    after = rows(read_aliexpress(tmp_path, SETTINGS, KEY, streamed=True), "train")
    assert torch.equal(after["numbers"][:, 0], (before["numbers"][:, 0].double() / 2).float())
    assert torch.equal(after["numbers"][:, 1:], before["numbers"][:, 1:])


def test_search_ids_on_both_sides_are_said(tmp_path: Path) -> None:
    folder = tmp_path / "AliExpress_NL"
    parts = processed(folder)
    parts["test"].loc[:3, "search_id"] = [5, 5, 9, 11]
    parts["test"].to_csv(folder / "test.csv", index=False)
    notes = read_aliexpress(tmp_path, SETTINGS, KEY).notes
    assert any(note.startswith("NL: 3 search ids of the test file are in") for note in notes)


def test_rows_of_a_page_that_are_apart_stay_on_one_side(tmp_path: Path) -> None:
    folder = tmp_path / "AliExpress_NL"
    parts = processed(folder)
    table = parts["train"].sample(frac=1, random_state=0)
    table.to_csv(folder / "train.csv", index=False)
    for streamed in (False, True):
        task = read_aliexpress(tmp_path, SETTINGS, KEY, streamed=streamed)
        off = last_tenth(table)
        assert_same(rows(task, "train"), expected(table[~off], table))
        assert_same(rows(task, "valid"), expected(table[off], table))
        assert any("search ids are not together" in note for note in task.notes)


def spoil(path: Path, change: Callable[[list[list[str]]], None]) -> None:
    table = list(csv.reader(io.StringIO(path.read_text())))
    change(table)
    path.write_text("".join(",".join(row) + "\n" for row in table))


def set_cell(row: int, column: int, value: str) -> Callable[[list[list[str]]], None]:
    return lambda table: table[row].__setitem__(column, value)


FAULTS = {
    "conversion without click": ("train.csv", set_cell(9, 80, "0,1"), 10, None),
    "no number": ("train.csv", set_cell(9, 30, "x"), 10, "'numerical_14' is 'x'"),
    "no column": ("test.csv", set_cell(0, 81, "bought"), 1, "no column 'conversion'"),
    "negative": ("test.csv", set_cell(4, 3, "-1"), 5, "'categorical_3' is -1"),
    "no label": ("nl_item_train.csv", set_cell(9, 48, "3"), 10, "'item_49' is 3, none of"),
    "short": ("nl_item_test.csv", lambda t: t[20].pop(), 21, "expected 49 columns, found 48"),
    "pages": ("nl_user_test.csv", set_cell(6, 12, ""), 7, "column 'user_13' is missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("streamed", [False, True])
def test_faults_name_file_and_line(tmp_path: Path, fault: str, streamed: bool) -> None:
    name, change, line, what = FAULTS[fault]
    folder = tmp_path / "AliExpress_NL"
    if name.startswith("nl"):
        published(folder, ending=".csv")
    else:
        processed(folder)
    if what is None:  # the last two columns
        change, what = lambda table: table[9].__setitem__(slice(80, 82), ["0", "1"]), "without a"
    spoil(folder / name, change)
    with pytest.raises(UserError) as caught:
        read_aliexpress(tmp_path, SETTINGS, KEY, streamed=streamed)
    assert str(caught.value).startswith(f"{folder / name}, line {line}: ")
    assert what in str(caught.value)


def test_a_page_twice(tmp_path: Path) -> None:
    folder = tmp_path / "AliExpress_NL"
    published(folder, ending=".csv")
    spoil(folder / "nl_user_train.csv", lambda table: table.insert(12, table[4]))
    with pytest.raises(UserError, match=r"nl_user_train\.csv, row 13: the search id \d+ has a"):
        read_aliexpress(tmp_path, SETTINGS, KEY)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        read_aliexpress(tmp_path / "nowhere", SETTINGS, KEY)
    with pytest.raises(UserError, match="no folder such as AliExpress_NL"):
        read_aliexpress(tmp_path, SETTINGS, KEY)
    (tmp_path / "AliExpress_NL").mkdir()
    with pytest.raises(UserError, match=r"AliExpress_NL has neither train\.csv"):
        read_aliexpress(tmp_path, SETTINGS, KEY)
    with pytest.raises(UserError, match="AliExpress_DE: known: NL"):
        read_aliexpress(tmp_path, SETTINGS, KEY, countries=["DE"])
    with pytest.raises(UserError, match=r"data\.samples"):
        read_aliexpress(tmp_path, ScenarioData(name="aliexpress", samples=10), KEY)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=12), st.data()
)
def test_pages_are_cut_as_a_naive_loop_does(
    runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    ids = [page for page, count in runs for _ in range(count)]
    share = data.draw(st.sampled_from([0.0, 0.1, 0.34, 0.5]))
    size = data.draw(st.integers(1, 7))
    pieces = [np.array(ids[start : start + size]) for start in range(0, len(ids), size)]
    before, off = Pages.of(pieces).cut(share)
    order = list(dict.fromkeys(ids))
    count = min(max(round(share * len(order)), 1), len(order) - 1) if share else 0
    gone = set(order[len(order) - count :])
    rows_of = [[row for each in ranges for row in range(*each)] for ranges in (before, off)]
    assert rows_of[0] == [row for row, page in enumerate(ids) if page not in gone]
    assert rows_of[1] == [row for row, page in enumerate(ids) if page in gone]
    n_runs = Counter(page for page, _ in groupby(ids))
    assert Pages.of(pieces).apart == sum(count > 1 for count in n_runs.values())


def test_real_rows(data_root: Path, tmp_path: Path) -> None:
    samples = data_root / "mtms-samples"
    if not samples.is_dir():
        pytest.skip(f"needs {samples}")
    folder = tmp_path / "AliExpress_NL"
    folder.mkdir()
    for part in ("train", "test"):
        content = (samples / f"aliexpress_{part}_sample.csv").read_bytes()
        (folder / f"{part}.csv").write_bytes(content)
    task = read_aliexpress(tmp_path, SETTINGS, KEY)
    # One id more than the largest of 100 rows, and one for unknown ids.
    assert task.schema.vocabularies == (11, 5, 7, 3, 22, 8, 51, 9, 8, 3, 3, 3, 3, 3, 3, 3)
    assert int(task.clients.test.lengths[0]) == 20
    assert int(task.clients.train.lengths[0] + task.clients.valid.lengths[0]) == 100
    assert "NL test: ids that training lacks (id 0): categorical_7 4" in task.notes
