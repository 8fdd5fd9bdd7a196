"""Tenrec's two feeds against a naive draw and numbering, with the traps of the files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.streamed import StreamedSamples
from coterie.core.data.sources import arrow_samples, csv_blocks
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key, unit
from coterie.msmt.data import tenrec
from coterie.msmt.data import tenrec as draw
from coterie.msmt.data.task import Task
from coterie.msmt.data.tenrec import CATEGORIES, HISTORY, read_tenrec
from coterie.msmt.settings import ScenarioData

KEY = Key.from_seed(3)
SETTINGS = ScenarioData(name="tenrec", valid=0.2, test=0.1)
PAPER = ScenarioData(name="tenrec", test=0.1, paper_protocol=True)
PARTS = ("train", "valid", "test")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_blocks, "_BLOCK", 3000)
    monkeypatch.setattr(arrow_samples, "ROWS", 32)


def qb(count: int = 120, clicked: float = 0.7, seed: int = 0) -> pd.DataFrame:
    """Rows of QB-video.csv, with its columns in their order."""
    rng = np.random.default_rng(seed)
    click = (rng.random(count) < clicked).astype(int)
    return pd.DataFrame(
        {
            "user_id": rng.integers(1, 30, count) * 1000,
            "item_id": rng.integers(1, 60, count) * 7,
            "click": click,
            "follow": 0,
            "like": click * (rng.random(count) < 0.3),
            "share": 0,
            "video_category": rng.choice(["0", "1", "\\N"], count),
            "watching_times": click * rng.integers(1, 9, count),
            "gender": rng.integers(0, 3, count),
            "age": rng.integers(0, 8, count),
        }
    )


def qk(count: int = 400, clicked: float = 0.2) -> pd.DataFrame:
    """Rows of ctr_data_1M.csv; some users have no history, so pandas writes floats."""
    rng = np.random.default_rng(1)
    table = qb(count, clicked, 1)
    history = {name: rng.integers(0, 9 + 3 * n, count) for n, name in enumerate(HISTORY)}
    table = table.assign(**history)
    table["hist_3"] = table["hist_3"].astype(float).mask(rng.random(count) < 0.1)
    return table


def folder_of(path: Path, **tables: pd.DataFrame) -> Path:
    names = {"qk": "ctr_data_1M.csv", "qb": "QB-video.csv"}
    for name, table in tables.items():
        table.to_csv(path / names[name], index=False)
    return path


def kept(table: pd.DataFrame, number: int, drawn: bool, key: Key = KEY) -> np.ndarray:
    """All positives and twice as many others, those with the smallest hashes, by sorting."""
    if not drawn:
        return np.ones(len(table), bool)
    hashes = key.fold("negatives", number).bits(torch.arange(len(table))).numpy()
    order = [(int(h) % 2**64 >> (64 - draw._BITS), row) for row, h in enumerate(hashes)]
    others = sorted(order[row] for row in np.flatnonzero(table["click"] == 0))
    chosen = {row for _, row in others[: 2 * int((table["click"] == 1).sum())]}
    return np.array([c == 1 or row in chosen for row, c in enumerate(table["click"])])


def parts(table: pd.DataFrame, number: int, valid: float, test: float) -> np.ndarray:
    drawn = unit(KEY.fold("part", number).bits(torch.arange(len(table))), torch.float64).numpy()
    return np.where(drawn < test, "test", np.where(drawn < test + valid, "valid", "train"))


def raw_ids(table: pd.DataFrame, number: int) -> pd.DataFrame:
    found = pd.DataFrame({name: table[name] for name in ("user_id", "item_id")})
    for name in ("video_category", "gender", "age"):
        found[name] = [-1 if v == "\\N" else int(v) for v in table[name]]
    for name in HISTORY:
        column = table.get(name, pd.Series(np.nan, index=table.index))
        found[name] = column.fillna(-1).astype(int)
    return found.assign(scenario=number)


def expected(tables: list[pd.DataFrame], draws: list[bool]) -> list[dict[str, dict]]:
    """Every scenario's parts: ids by rank among all training rows, labels."""
    masks = [kept(table, n, draws[n]) for n, table in enumerate(tables)]
    drawn = [parts(table, n, 0.2, 0.1) for n, table in enumerate(tables)]
    ids = [raw_ids(table, n) for n, table in enumerate(tables)]
    trained = pd.concat(
        [each[mask & (part == "train")] for each, mask, part in zip(ids, masks, drawn, strict=True)]
    )
    known = {name: sorted(trained[name].unique()) for name in CATEGORIES}
    found = []
    for number, table in enumerate(tables):
        scenario = {}
        for name in PARTS:
            rows = masks[number] & (drawn[number] == name)
            codes = [
                [known[c].index(v) + 1 if v in known[c] else 0 for v in ids[number][c][rows]]
                for c in CATEGORIES
            ]
            scenario[name] = {
                "ids": torch.tensor(codes, dtype=torch.int32).T,
                "labels": torch.tensor(
                    table[["click", "like"]][rows].to_numpy(), dtype=torch.uint8
                ),
            }
        found.append(scenario)
    return found


def rows(task: Task, part: str, place: int) -> dict[str, torch.Tensor]:
    samples: Any = getattr(task.clients, part)
    if isinstance(samples, StreamedSamples):
        samples = samples.resident()
    return samples.take(torch.tensor([place])).samples


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("blocks", "bits"), [(500, 20), (500, 3), (100_000, 20)])
def test_rows_draws_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool, blocks: int, bits: int
) -> None:
    monkeypatch.setattr(draw, "_BITS", bits)  # with few bits, many rows have one hash
    monkeypatch.setattr(csv_blocks, "_BLOCK", blocks)
    tables = [qk(), qb()]
    folder_of(tmp_path, qk=tables[0], qb=tables[1])
    task = read_tenrec(tmp_path, SETTINGS, KEY, streamed=streamed)
    assert task.schema.scenarios == ("QK-video", "QB-video")
    assert task.schema.tasks == ("click", "like")
    assert task.schema.n_numbers == 0
    wanted = expected(tables, [True, False])
    for place, scenario in enumerate(wanted):
        for part, fields in scenario.items():
            found = rows(task, part, place)
            assert torch.equal(found["ids"], fields["ids"]), (place, part)
            assert torch.equal(found["labels"], fields["labels"])
            assert found["ids"].dtype == torch.int32
            assert found["numbers"].shape == (len(found["ids"]), 0)
            assert found["scenario"].unique().tolist() == [place]
    largest = torch.cat([s["train"]["ids"] for s in wanted]).max(0).values + 1
    assert task.schema.vocabularies == tuple(largest.tolist())
    assert isinstance(task.clients.train, StreamedSamples if streamed else SampleData)


@pytest.mark.parametrize("after", [3, 4, 5, 6, 7, 10, 20])
def test_what_was_interrupted_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(draw, "_BITS", 1)  # many rows have the last hash that is drawn
    monkeypatch.setattr(arrow_samples, "MARKED", 1)
    folder_of(tmp_path, qk=qk(400, 0.27), qb=qb())
    whole = read_tenrec(tmp_path, SETTINGS, KEY, streamed=True, store=tmp_path / "whole")
    real, calls = arrow_samples.SampleWriter.add, [0]

    def add(self: arrow_samples.SampleWriter, *given: Any) -> int:
        calls[0] += 1
        if calls[0] > after:
            raise KeyboardInterrupt
        return real(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(arrow_samples.SampleWriter, "add", add)
        with pytest.raises(KeyboardInterrupt):
            read_tenrec(tmp_path, SETTINGS, KEY, streamed=True, store=tmp_path / "again")
    again = read_tenrec(tmp_path, SETTINGS, KEY, streamed=True, store=tmp_path / "again")
    assert again.schema == whole.schema
    assert again.notes == whole.notes
    for part in PARTS:
        for place in (0, 1):
            assert torch.equal(rows(again, part, place)["ids"], rows(whole, part, place)["ids"])


def test_all_positives_and_twice_as_many_others(tmp_path: Path) -> None:
    table = qk(1000)
    folder_of(tmp_path, qk=table)
    task = read_tenrec(tmp_path, SETTINGS, KEY)
    labels = torch.cat([rows(task, part, 0)["labels"] for part in PARTS])
    positive = int((table["click"] == 1).sum())
    assert int(labels[:, 0].sum()) == positive
    assert len(labels) == 3 * positive
    assert f"QK-video: {positive} clicked rows, and {2 * positive} others drawn" in task.notes
    assert any("QB-video is not there" in note for note in task.notes)
    lengths = [int(getattr(task.clients, part).lengths[0]) for part in PARTS]
    assert 0.6 < lengths[0] / len(labels) < 0.8
    assert 0.13 < lengths[1] / len(labels) < 0.27
    assert 0.05 < lengths[2] / len(labels) < 0.16


def test_too_few_others_are_all_kept_and_it_is_said(tmp_path: Path) -> None:
    table = qk(300, 0.6)
    task = read_tenrec(folder_of(tmp_path, qk=table), SETTINGS, KEY)
    assert sum(int(getattr(task.clients, part).lengths[0]) for part in PARTS) == 300
    assert any("there are no 2 a clicked one" in note for note in task.notes)


def test_another_key_draws_others(tmp_path: Path) -> None:
    folder_of(tmp_path, qk=qk(), qb=qb())
    first = read_tenrec(tmp_path, SETTINGS, KEY, streamed=True)
    second = read_tenrec(tmp_path, SETTINGS, Key.from_seed(4), streamed=True)
    third = read_tenrec(tmp_path, PAPER, KEY, streamed=True)
    ids = rows(first, "train", 0)["ids"]  # opened last, and yet its own
    alone = read_tenrec(tmp_path, SETTINGS, KEY, streamed=False)
    assert torch.equal(ids, rows(alone, "train", 0)["ids"])
    for other in (second, third):
        assert not torch.equal(ids, rows(other, "train", 0)["ids"])
    again = read_tenrec(tmp_path, SETTINGS, KEY, streamed=True)
    assert torch.equal(ids, rows(again, "train", 0)["ids"])


def test_what_is_converted_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path, qk=qk(), qb=qb())
    store = tmp_path / "store"
    first = read_tenrec(tmp_path, SETTINGS, KEY, streamed=True, store=store)
    files = sorted(str(p.relative_to(store)) for p in store.rglob("*") if p.is_file())
    assert len({file.split("/")[1] for file in files}) == 1  # named by what was drawn
    names = [re.sub("/[0-9a-f]{12}/", "/", file) for file in files]
    assert names == [f"{s}/{p}.arrow" for s in ("QB-video", "QK-video") for p in sorted(PARTS)]

    def no_reading(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(tenrec, "survey", no_reading)
    monkeypatch.setattr(tenrec, "load", no_reading)
    second = read_tenrec(tmp_path, SETTINGS, KEY, streamed=True, store=store)
    assert second.schema == first.schema
    assert second.notes == first.notes
    for part in PARTS:
        assert torch.equal(rows(second, part, 1)["ids"], rows(first, part, 1)["ids"])
    with pytest.raises(AssertionError, match="read again"):
        read_tenrec(tmp_path, PAPER, KEY, streamed=True, store=store)
    table = qb()
    folder_of(tmp_path, qb=table.iloc[:-1])
    with pytest.raises(AssertionError, match="read again"):
        read_tenrec(tmp_path, SETTINGS, KEY, streamed=True, store=store)


def test_paper_protocol_trains_on_validation_rows_and_chooses_by_test_rows(tmp_path: Path) -> None:
    tables = [qk(), qb()]
    folder_of(tmp_path, qk=tables[0], qb=tables[1])
    task = read_tenrec(tmp_path, PAPER, KEY)
    assert task.clients.valid is task.clients.test
    for place, table in enumerate(tables):
        rows_kept = kept(table, place, place == 0)
        test = rows_kept & (parts(table, place, 0.0, 0.1) == "test")
        assert int(task.clients.test.lengths[place]) == test.sum()
        assert int(task.clients.train.lengths[place]) == (rows_kept & ~test).sum()


def test_watching_times_follow_and_share_are_no_inputs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    table = qb()
    folder_of(tmp_path / "a", qb=table)
    folder_of(tmp_path / "b", qb=table.assign(watching_times=0, follow=1, share=1))
    one, two = (read_tenrec(tmp_path / each, SETTINGS, KEY) for each in "ab")
    assert one.schema == two.schema
    assert torch.equal(rows(one, "train", 0)["ids"], rows(two, "train", 0)["ids"])


def test_a_missing_category_is_one_of_its_own(tmp_path: Path) -> None:
    task = read_tenrec(folder_of(tmp_path, qb=qb()), SETTINGS, KEY)
    assert task.schema.vocabularies[2] == 4  # \N, 0, 1, and 0 for unknown ones
    assert task.schema.vocabularies[5:15] == (2,) * 10  # no history


def change(table: pd.DataFrame, column: str, value: object) -> pd.DataFrame:
    table = table.astype({column: object})
    table.loc[40, column] = value
    return table


FAULTS: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], int, str]] = {
    "no user": (lambda t: change(t, "user_id", "\\N"), 42, "'user_id' is missing"),
    "no item": (lambda t: change(t, "item_id", ""), 42, "'item_id' is missing"),
    "half a history": (lambda t: change(t, "hist_2", 3.5), 42, "'hist_2' is 3.5, not an id"),
    "negative age": (lambda t: change(t, "age", -4), 42, "'age' is -4, not an id"),
    "words": (lambda t: change(t, "gender", "f"), 42, "'gender' is 'f', not a number"),
    "label": (lambda t: change(t, "like", 2), 42, "'like' is 2, neither 0 nor 1"),
    "column": (lambda t: t.drop(columns="hist_4"), 1, "no column 'hist_4'"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("streamed", [False, True])
def test_faults_name_file_and_line(tmp_path: Path, fault: str, streamed: bool) -> None:
    spoil, line, what = FAULTS[fault]
    folder_of(tmp_path, qk=spoil(qk()), qb=qb())
    with pytest.raises(UserError) as caught:
        read_tenrec(tmp_path, SETTINGS, KEY, streamed=streamed)
    assert str(caught.value).startswith(f"{tmp_path / 'ctr_data_1M.csv'}, line {line}: ")
    assert what in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has none of ctr_data_1M\.csv, QB-video\.csv"):
        read_tenrec(tmp_path, SETTINGS, KEY)
    folder_of(tmp_path, qb=qb())
    with pytest.raises(UserError, match=r"has no ctr_data_1M\.csv"):
        read_tenrec(tmp_path, SETTINGS, KEY, scenarios=["QK-video"])
    with pytest.raises(UserError, match="'QB-article' is no scenario of Tenrec"):
        read_tenrec(tmp_path, SETTINGS, KEY, scenarios=["QB-article"])
    with pytest.raises(UserError, match=r"data\.samples"):
        read_tenrec(tmp_path, ScenarioData(name="tenrec", samples=10), KEY)
