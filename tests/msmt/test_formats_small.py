"""Ali-CCP, KuaiRand, MIND and Douban: files in their layout with their traps, and real rows."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.joined_tables import (
    CATEGORIES,
    NUMBERS,
    read_ali_ccp,
    read_douban,
    read_kuairand,
    read_mind,
)
from coterie.msmt.data.task import Task
from coterie.msmt.settings import ScenarioData

KEY = Key.from_seed(0)
SETTINGS = ScenarioData(name="other")
PAPER = ScenarioData(name="other", paper_protocol=True)
PARTS = ("train", "valid", "test")
RNG = np.random.default_rng(0)


def rows(task: Task, part: str, place: int | None = None) -> dict[str, torch.Tensor]:
    samples: Any = getattr(task.clients, part)
    return (samples if place is None else samples.take(torch.tensor([place]))).samples


def everything(task: Task) -> dict[str, torch.Tensor]:
    found = [rows(task, part) for part in PARTS]
    return {name: torch.cat([each[name] for each in found]) for name in found[0]}


def ali_ccp(count: int, ids: int = 5) -> pd.DataFrame:
    click = RNG.integers(0, 2, count)
    return pd.DataFrame(
        {
            "click": click,
            "purchase": click * RNG.integers(0, 2, count),
            "101": RNG.integers(0, ids, count),
            "205": RNG.integers(0, ids, count) * 100,
            "301": RNG.integers(1, 4, count),
            "109_14": 1,
            "D109_14": RNG.random(count).round(4),
            "D508": RNG.random(count).round(4) * 10,
        }
    )


def write_ali_ccp(folder: Path, **tables: pd.DataFrame) -> None:
    for part, table in tables.items():
        table.to_csv(folder / f"ali_ccp_{part}.csv", index=False)


def test_ali_ccp_keeps_the_parts_that_are_given(tmp_path: Path) -> None:
    tables = {"train": ali_ccp(60), "val": ali_ccp(20, 8), "test": ali_ccp(30, 9)}
    write_ali_ccp(tmp_path, **tables)
    task = read_ali_ccp(tmp_path, SETTINGS, KEY)
    assert task.schema.scenarios == ("position 1", "position 2", "position 3")
    assert task.schema.tasks == ("click", "purchase")
    assert task.schema.funnel
    assert task.schema.n_numbers == 2
    trained = tables["train"]
    for part, name in zip(PARTS, tables, strict=True):
        for place in range(3):
            table = tables[name][tables[name]["301"] == place + 1]
            found = rows(task, part, place)
            assert found["labels"].tolist() == table[["click", "purchase"]].values.tolist()
            for column, field in enumerate(("101", "205", "109_14")):
                known = set(trained[field])
                ids = found["ids"][:, column]
                assert [bool(i) for i in ids] == [value in known for value in table[field]]
                pairs = {(i, v) for i, v in zip(ids.tolist(), table[field], strict=True) if i}
                assert len(pairs) == len({i for i, _ in pairs}) == len({v for _, v in pairs})
            low, high = trained["D109_14"].min(), trained["D109_14"].max()
            scaled = ((table["D109_14"] - low) / (high - low)).clip(0, 1)
            wanted = torch.tensor(scaled.to_numpy(np.float32))
            assert torch.allclose(found["numbers"][:, 0], wanted, atol=1e-6)
    assert task.schema.vocabularies == (6, 6, 2)
    assert any("training lacks" in note for note in task.notes)
    paper = read_ali_ccp(tmp_path, PAPER, KEY)
    assert len(rows(paper, "train")["ids"]) == 80
    assert len(rows(paper, "valid")["ids"]) == len(rows(paper, "test")["ids"]) == 30


def test_ali_ccp_names_the_line_of_a_purchase_without_a_click(tmp_path: Path) -> None:
    tables = {"train": ali_ccp(60), "val": ali_ccp(20), "test": ali_ccp(30)}
    tables["val"].loc[7, ["click", "purchase"]] = [0, 1]
    write_ali_ccp(tmp_path, **tables)
    with pytest.raises(UserError, match=r"ali_ccp_val\.csv, line 9: a purchase without a click"):
        read_ali_ccp(tmp_path, SETTINGS, KEY)
    tables["val"].loc[7, ["click", "purchase"]] = [0, 3]
    write_ali_ccp(tmp_path, **tables)
    with pytest.raises(UserError, match=r"ali_ccp_val\.csv, line 9: the label 'purchase' is 3"):
        read_ali_ccp(tmp_path, SETTINGS, KEY)
    (tmp_path / "ali_ccp_test.csv").unlink()
    with pytest.raises(UserError, match=r"has no ali_ccp_test\.csv or ali_ccp_test_sample\.csv"):
        read_ali_ccp(tmp_path, SETTINGS, KEY)


def kuairand(count: int = 300) -> pd.DataFrame:
    table = {name: RNG.integers(0, 6, count) for name in CATEGORIES}
    table |= {name: RNG.integers(0, 900, count) for name in NUMBERS}
    times = {"duration_ms": RNG.choice([5000, 17999, 18000, 18001, 60000], count)}
    times["play_time_ms"] = RNG.choice([0, 4999, 5000, 17999, 18000, 59999], count)
    more = {name: RNG.integers(0, 9, count) for name in ("profile_stay_time", "comment_stay_time")}
    labels = {"is_click": RNG.integers(0, 2, count), "tab": RNG.choice([0, 1, 3, 4, 6, 9], count)}
    return pd.DataFrame(table | times | more | labels)


def test_kuairand_tabs_and_long_views(tmp_path: Path) -> None:
    table = kuairand().assign(number=np.arange(300))
    table["user_id"] = np.arange(300)  # so that rows can be told
    table.to_csv(tmp_path / "kuairand_1k.csv", index=False)
    task = read_kuairand(tmp_path, SETTINGS, KEY)
    assert task.schema.scenarios == ("tab 0", "tab 1", "tab 4", "tab 6")
    other = int(table["tab"].isin([3, 9]).sum())
    assert f"{other} rows of another 'tab' are left out" in task.notes
    assert task.schema.tasks == ("click", "long_view")
    assert len(task.schema.vocabularies) == len(CATEGORIES) == 32
    found = everything(task)
    assert len(found["labels"]) == 300 - other
    taken = table[~table["tab"].isin([3, 9])]
    rule = [
        played >= length if length <= 18000 else played >= 18000
        for played, length in zip(taken["play_time_ms"], taken["duration_ms"], strict=True)
    ]
    wanted = sorted(zip(taken["is_click"], map(int, rule), strict=True))
    assert sorted(map(tuple, found["labels"].tolist())) == wanted
    given = taken.assign(long_view=1)
    given.to_csv(tmp_path / "kuairand_1k.csv", index=False)
    assert everything(read_kuairand(tmp_path, SETTINGS, KEY))["labels"][:, 1].min() == 1


def test_kuairand_times_are_no_inputs(tmp_path: Path) -> None:
    table = kuairand().assign(long_view=0)
    inputs = []
    for change in ({}, {"play_time_ms": 1, "profile_stay_time": 2, "comment_stay_time": 3}):
        table.assign(**change).to_csv(tmp_path / "kuairand.csv", index=False)
        found = everything(read_kuairand(tmp_path, SETTINGS, KEY))
        inputs.append(torch.cat([found["ids"].double(), found["numbers"].double()], 1))
    assert torch.equal(*inputs)


def test_kuairand_says_when_there_is_one_tab_only(tmp_path: Path) -> None:
    kuairand().assign(tab=4).to_csv(tmp_path / "kuairand.csv", index=False)
    task = read_kuairand(tmp_path, SETTINGS, KEY)
    assert task.schema.scenarios == ("tab 4",)
    assert "there is one scenario only, 'tab' is tab 4 in all rows" in task.notes
    kuairand().assign(tab=5).to_csv(tmp_path / "kuairand.csv", index=False)
    with pytest.raises(UserError, match=r"kuairand\.csv: no row has a 'tab' of 0, 1, 2, 4, 6"):
        read_kuairand(tmp_path, SETTINGS, KEY)


def mind(count: int = 400) -> pd.DataFrame:
    kinds = ["news", "sports", "finance", "weather"]
    return pd.DataFrame(
        {
            "User_ID": [f"U{n}" for n in RNG.integers(0, 50, count)],
            "News_ID": [f"N{n}" for n in RNG.integers(0, 40, count)],
            "label": RNG.integers(0, 2, count),
            "Category": RNG.choice(kinds, count),
            "SubCategory": RNG.choice(["a", "b"], count),
        }
    )


def test_mind_categories(tmp_path: Path) -> None:
    table = mind()
    (tmp_path / "mind.csv.gz").write_bytes(gzip.compress(table.to_csv(index=False).encode()))
    task = read_mind(tmp_path, SETTINGS, KEY)
    assert task.schema.scenarios == ("news", "sports", "finance")
    assert task.schema.tasks == ("click",)
    assert task.schema.n_numbers == 0
    for place, name in enumerate(task.schema.scenarios):
        mine = table[table["Category"] == name]
        found = torch.cat([rows(task, part, place)["labels"] for part in PARTS])
        assert len(found) == len(mine)
        assert int(found.sum()) == mine["label"].sum()
        lengths = [len(rows(task, part, place)["ids"]) for part in PARTS]
        shares = zip(lengths, (0.8, 0.1, 0.1), strict=True)
        assert all(abs(n - s * len(mine)) < 2 for n, s in shares)
    assert any("rows of another 'Category' are left out" in note for note in task.notes)


def test_douban_users_are_the_same_in_all_domains(tmp_path: Path) -> None:
    count = 300
    table = pd.DataFrame(
        {
            "user_id": RNG.integers(0, 10, count),
            "item_id": RNG.integers(0, 30, count),
            "rating": RNG.integers(0, 2, count),
            "domain": RNG.choice(["book", "movie", "music"], count),
            "living_place": RNG.choice(["北京", "上海", ""], count),
            "join_time": "2007-07-10",
            "time_bin": RNG.integers(0, 4, count),
        }
    )
    table.to_csv(tmp_path / "douban_sample.csv", index=False)
    task = read_douban(tmp_path, SETTINGS, KEY)
    assert task.schema.scenarios == ("book", "music", "movie")
    assert task.schema.vocabularies[0] == 11
    assert task.schema.vocabularies[2] == 3
    blank = int((table["living_place"] == "").sum())
    assert int((everything(task)["ids"][:, 2] == 0).sum()) == blank
    assert any(f"missing values (id 0): living_place {blank}" in note for note in task.notes)
    table.assign(rating=5).to_csv(tmp_path / "douban_sample.csv", index=False)
    with pytest.raises(UserError, match=r"douban_sample\.csv, line 2: the label 'rating' is 5"):
        read_douban(tmp_path, SETTINGS, KEY)


READERS: dict[str, tuple[Callable[..., Task], str, Callable[[], pd.DataFrame]]] = {
    "kuairand": (read_kuairand, "video_id", kuairand),
    "mind": (read_mind, "News_ID", mind),
}


@pytest.mark.parametrize("name", READERS)
def test_draws_are_the_keys_and_columns_must_be_there(tmp_path: Path, name: str) -> None:
    read, column, make = READERS[name]
    table, path = make(), tmp_path / f"{name}.csv"
    with pytest.raises(UserError, match=rf"has no {name}\.csv"):
        read(tmp_path, SETTINGS, KEY)
    table.to_csv(path, index=False)
    one, again, other = (read(tmp_path, SETTINGS, Key.from_seed(n)) for n in (0, 0, 1))
    assert torch.equal(rows(one, "test")["ids"], rows(again, "test")["ids"])
    if rows(one, "test")["ids"].shape == rows(other, "test")["ids"].shape:
        assert not torch.equal(rows(one, "test")["ids"], rows(other, "test")["ids"])
    table.drop(columns=column).to_csv(path, index=False)
    with pytest.raises(UserError, match=rf"{name}\.csv, line 1: no column '{column}'"):
        read(tmp_path, SETTINGS, KEY)


REAL = {
    "ali-ccp": (read_ali_ccp, 200, 3, 22),
    "kuairand": (read_kuairand, 200, 1, 32),
    "mind": (read_mind, 8000, 4, 3),
    "douban": (read_douban, 3000, 3, 4),
}


@pytest.mark.parametrize("name", REAL)
def test_real_rows(data_root: Path, name: str) -> None:
    folder = data_root / "mtms-samples"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    read, count, n_scenarios, n_categories = REAL[name]
    task = read(folder, SETTINGS, KEY)
    assert sum(int(getattr(task.clients, part).lengths.sum()) for part in PARTS) == count
    assert task.schema.n_scenarios == n_scenarios
    assert len(task.schema.vocabularies) == n_categories
    found = everything(task)
    assert bool((found["ids"] < torch.tensor(task.schema.vocabularies)).all())
    assert found["numbers"].isfinite().all()
