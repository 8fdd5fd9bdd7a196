"""A file of the user's own: what is chosen, what is refused, in one line."""

import gzip

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data import own_file
from coterie.msmt.data.make import make_task
from coterie.msmt.settings import ScenarioData

KEY = Key.from_seed(1)
ROLES = {"scenario": "country", "tasks": ("click", "buy")}


def table(n=60):
    rng = np.random.default_rng(0)
    click = rng.integers(0, 2, n)
    return pd.DataFrame(
        {
            "country": rng.permutation(["NL", "FR", "ES"] * (n // 3)),
            "device": rng.choice(["phone", "tablet", "tv"], n),
            "hour": rng.integers(0, 24, n),
            "item_id": np.arange(n) + 10_000,
            "price": rng.normal(20, 5, n).round(3),
            "click": click,
            "buy": click * rng.integers(0, 2, n),
        }
    )


def write(tmp_path, frame, name="my.csv"):
    path = tmp_path / name
    if name.endswith(".parquet"):
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    return path


def read(path, **more):
    return make_task(ScenarioData(name=str(path), **(ROLES | more)), KEY)


def joined(task, name):
    clients = task.clients
    return torch.cat([p.samples[name] for p in (clients.train, clients.valid, clients.test)])


@pytest.mark.parametrize("name", ["my.csv", "my.csv.gz", "my.parquet", "my.tsv"])
def test_what_is_in_the_file_is_in_the_task(tmp_path, name):
    frame = table()
    path = tmp_path / name
    if name == "my.tsv":
        frame.to_csv(path, index=False, sep="\t")
    else:
        write(tmp_path, frame, name)
    task = read(path, split=None)
    assert task.schema.tasks == ("click", "buy")
    assert task.schema.scenarios == ("ES", "FR", "NL")
    assert task.schema.funnel
    assert task.schema.n_numbers == 1
    assert task.notes[:3] == (
        "categories: device, hour, item_id",
        "numbers: price",
        "each label implies those before it: click, buy are taken for a funnel",
    )
    assert any(
        note.startswith("values of validation and test that training") for note in task.notes
    )
    for place, country in enumerate(task.schema.scenarios):
        own = joined(task, "scenario") == place
        expected = frame[frame.country == country][["click", "buy"]].sum().tolist()
        assert joined(task, "labels")[own].sum(0).tolist() == expected
    assert task.clients.train.lengths.tolist() == [16, 16, 16]
    assert task.name == f"{name} by country"


@pytest.mark.parametrize("name", ["my.csv", "my.parquet"])
@pytest.mark.parametrize("more", [{}, {"split": "part"}], ids=["drawn", "given"])
def test_the_same_rows_in_another_order_are_the_same_task(tmp_path, name, more):
    frame = table()
    frame["part"] = np.where(np.arange(60) % 5 == 0, "test", "train")
    frame.loc[3, "device"] = frame.loc[7, "price"] = None
    frame = pd.concat([frame, frame.iloc[:4]])  # and some of them twice
    first = read(write(tmp_path, frame), **more)
    again = read(write(tmp_path, frame.sample(frac=1, random_state=2), f"other-{name}"), **more)
    assert again.schema == first.schema
    for part in ("train", "valid", "test"):
        one, other = getattr(first.clients, part), getattr(again.clients, part)
        assert one.offsets.tolist() == other.offsets.tolist()
        for field, values in one.samples.items():
            assert torch.equal(values, other.samples[field]), (part, field)


def test_parts_of_the_file_and_the_scale_of_numbers(tmp_path):
    frame = table()
    frame["part"] = np.random.default_rng(1).choice(["train", "valid", "test"], 60)
    task = read(write(tmp_path, frame), split="part", numbers=("price", "hour"))
    frame = frame.sort_values(["country", "buy", "click", "hour", "price"])  # in any order the same
    train, test = frame[frame.part == "train"], frame[frame.part == "test"]
    scaler = StandardScaler().fit(train[["price", "hour"]])
    for rows, part in ((train, task.clients.train), (test, task.clients.test)):
        wanted = scaler.transform(rows[["price", "hour"]])
        assert np.allclose(part.samples["numbers"], wanted, atol=1e-5)
        assert part.samples["labels"].tolist() == rows[["click", "buy"]].to_numpy().tolist()
        assert part.samples["ids"].shape == (len(rows), 0)  # naming some takes these alone
    assert task.notes[0] == "categories: none"


def test_missing_values_are_counted(tmp_path):
    frame = table().astype(object)
    frame.loc[[3, 8], "device"] = ""
    frame.loc[5, "price"] = "nan"
    frame.loc[[1, 2, 9], "hour"] = None
    for name in ("my.csv", "my.parquet"):
        typed = frame.copy()
        if name == "my.parquet":
            typed["price"] = typed["price"].astype(float)
            typed["hour"] = pd.array(list(typed["hour"]), dtype="Int64")
            typed["device"] = typed["device"].replace("", None)
            typed = typed.astype({"click": int, "buy": int, "item_id": int})
        task = read(write(tmp_path, typed, name))
        assert task.notes[0] == "categories: device, hour, item_id"
        assert "missing values (id 0): device 2, hour 3" in task.notes
        assert "missing numbers (0): price 1" in task.notes


def test_what_columns_are_taken_for(tmp_path, monkeypatch):
    monkeypatch.setattr(own_file, "FEW", 20)
    frame = table().drop(columns=["item_id"])
    frame["many"] = np.arange(60)
    frame["userId"] = np.arange(60)
    frame["text"] = [f"word {k}" for k in range(60)]
    frame["words"] = [f"word {k % 25}" for k in range(60)]
    frame["flag"] = [True, False] * 30
    task = read(write(tmp_path, frame, "my.parquet"))
    assert task.notes[0] == "categories: device, userId, words, flag"
    assert task.notes[1] == "numbers: hour, price, many"
    assert task.notes[2].startswith("text: left out")
    task = read(write(tmp_path, frame), categories=("text",))
    assert task.notes[:2] == ("categories: text", "numbers: none")
    assert task.schema.n_numbers == 0


def test_labels_that_are_no_funnel(tmp_path):
    frame = table()
    frame["buy"] = 1 - frame["click"]
    assert not read(write(tmp_path, frame)).schema.funnel
    assert not read(write(tmp_path, table()), tasks=("buy",)).schema.funnel
    frame = table().astype({"click": bool, "buy": float})
    assert read(write(tmp_path, frame, "my.parquet")).schema.funnel


def changed(row, column, value):
    frame = table().astype(object)
    frame.loc[row, column] = value
    return frame


FAULTS = [
    (table(), {"scenario": "land"}, r"my.csv, line 1: no column 'land' \(data.scenario\)"),
    (table(), {"tasks": ("clicks",)}, r"no column 'clicks' \(data.tasks\); did you mean 'click'"),
    (table(), {"categories": ("devices",)}, r"no column 'devices' \(data.categories\)"),
    (table(), {"numbers": ("cost",)}, r"no column 'cost' \(data.numbers\)"),
    (table(), {"split": "part"}, r"no column 'part' \(data.split\)"),
    (changed(4, "click", 2), {}, r"line 6: the label 'click' is '2', neither 0 nor 1"),
    (changed(4, "buy", "yes"), {}, r"line 6: the label 'buy' is 'yes', neither 0 nor 1"),
    (changed(4, "buy", ""), {}, r"line 6: the label 'buy' is missing"),
    (changed(4, "country", "IT"), {}, r"line 6: scenario 'IT' has this single sample"),
    (changed(4, "country", " "), {}, r"line 6: column 'country' is empty"),
    (changed(4, "price", "dear"), {"numbers": ("price",)}, r"line 6: .* 'dear', not a number"),
    (table()[:0], {}, r"line 1: the file has no rows"),
    (table()[["country", "click", "buy"]], {}, r"my.csv has no inputs beside"),
    (table().rename(columns={"price": "hour"}), {}, r"line 1: a column name occurs twice"),
    (table().assign(part="later"), {"split": "part"}, r"line 2: .* 'later', not train"),
    (table().assign(part="test"), {"split": "part"}, r"scenario 'ES' has no training sample"),
]


@pytest.mark.parametrize(("frame", "more", "what"), FAULTS, ids=[what for *_, what in FAULTS])
def test_faults_are_one_line(tmp_path, frame, more, what):
    with pytest.raises(UserError, match=what) as error:
        read(write(tmp_path, frame), **more)
    assert "\n" not in str(error.value)


def test_faults_of_the_file_itself(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        read(tmp_path / "my.csv")
    (tmp_path / "my.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="save it as CSV or Parquet"):
        read(tmp_path / "my.jsonl")
    (tmp_path / "my.parquet").write_text("no")
    with pytest.raises(UserError, match="no whole Parquet file"):
        read(tmp_path / "my.parquet")
    frame = table()
    frame["list"] = [[1, 2]] * 60
    path = write(tmp_path, frame, "lists.parquet")
    with pytest.raises(UserError, match="column 'list' is of type large_list"):
        read(path, categories=("list",))
    frame["day"] = pd.Timestamp("2024-05-06")
    task = read(write(tmp_path, frame, "lists.parquet"))
    assert task.notes[2].startswith("list, day: left out")
    cut = gzip.compress(b"country,click\nNL,1\n")[:-6]
    (tmp_path / "cut.csv.gz").write_bytes(cut)
    with pytest.raises(UserError, match="corrupt or cut off"):
        read(tmp_path / "cut.csv.gz", tasks=("click",))


def test_parquet_faults_name_the_row(tmp_path):
    path = write(tmp_path, table().assign(click=[2] + [0] * 59), "my.parquet")
    with pytest.raises(UserError, match=r"row 1: the label 'click' is '2'"):
        read(path)
