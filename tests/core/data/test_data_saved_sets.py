"""Folders of `save_to_disk`: the numbers of the same rows as CSV; broken ones in one line."""

import csv
import json
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from coterie.core.cli.main import main
from coterie.core.data.interactions.canonical import data_digest
from coterie.core.data.sources.catalogue import load
from coterie.core.data.sources.hub_sets import saved_copy
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import hub_name

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()


def rows(seed=0, users=30, items=40, n=1200):
    draws = np.random.default_rng(seed)
    item = draws.integers(0, items, n)
    return {
        "who": [f"u{number}" for number in draws.integers(0, users, n)],
        "what": item.tolist(),
        "when": draws.permutation(n).tolist(),
        "stars": draws.integers(1, 6, n).tolist(),
        "name": [f"The Film of {number}" for number in item],
    }


ROLES = {"user": "who", "item": "what", "time": "when", "rating": "stars", "title": "name"}
COLUMNS = ",".join(f"{role}={column}" for role, column in ROLES.items())


def refused(path, message, **named):
    with pytest.raises(UserError) as caught:
        load(path, **named)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def saved(tmp_path):
    """A folder of two parts."""
    path = tmp_path / "saved"
    datasets.Dataset.from_dict(rows()).save_to_disk(path, num_shards=2)
    return path


@pytest.fixture
def as_csv(tmp_path):
    path = tmp_path / "my.csv"
    pd.DataFrame(rows()).to_csv(path, index=False)
    return path


def test_a_folder_gives_what_the_same_rows_give_as_csv(saved, as_csv):
    assert data_digest(load(saved, columns=ROLES)) == data_digest(load(as_csv, columns=ROLES))


def measured(folder):
    """Metrics of a run but for its seconds."""
    with (folder / "metrics.csv").open() as file:
        found = list(csv.DictReader(file))
    assert found
    return [{key: row[key] for key in row if "seconds" not in key} for row in found]


@pytest.mark.long
@pytest.mark.parametrize(
    ("paper", "columns"),
    [
        ("f3crec", COLUMNS),
        ("pplr", COLUMNS),
        ("mtal", "user=who,item=what,rating=stars --data.domains uniform"),
    ],
)
def test_runs_on_a_folder_and_on_csv_have_the_same_numbers(
    tmp_path, saved, as_csv, capsys, paper, columns
):
    for name, path in (("a", saved), ("b", as_csv)):
        words = ["train", paper, "--preset", "smoke", "--data", str(path)]
        words += [
            "--data.columns",
            *columns.split(),
            "--out",
            str(tmp_path / "runs"),
            "--run.name",
            name,
        ]
        assert main(words) == 0, capsys.readouterr().err
    folder = tmp_path / "runs" / paper
    assert measured(folder / "a") == measured(folder / "b")


@pytest.fixture
def labelled():
    draws = np.random.default_rng(1)
    n = 400
    return {
        "shop": draws.choice(["north", "south"], n).tolist(),
        "age": draws.normal(40, 9, n).round(2).tolist(),
        "kind": draws.integers(0, 3, n).tolist(),
        "click": draws.integers(0, 2, n).tolist(),
    }


def test_labels_that_are_classes_count_by_their_numbers(tmp_path, labelled, capsys):
    pd.DataFrame(labelled).to_csv(tmp_path / "b.csv", index=False)
    found = datasets.Dataset.from_dict(labelled)
    found = found.cast_column("click", datasets.ClassLabel(names=["no", "yes"]))
    found.cast_column("shop", datasets.ClassLabel(names=["south", "north"])).save_to_disk(
        tmp_path / "a"
    )
    for name, path in (("a", tmp_path / "a"), ("b", tmp_path / "b.csv")):
        words = ["train", "pf-msmtrec", "--preset", "smoke", "--data", str(path)]
        words += ["--data.scenario", "shop", "--data.tasks", "[click]", "--out", str(tmp_path)]
        assert main([*words, "--run.name", name]) == 0, capsys.readouterr().err
    folder = tmp_path / "pf-msmtrec"
    assert measured(folder / "a") == measured(folder / "b")


def small(**columns):
    return datasets.Dataset.from_dict({"user": ["a", "b", "a"], "item": [1, 2, 3], **columns})


def test_classes_have_their_names(tmp_path):
    found = small(genres=[[0], [1, 0], []], title=[1, -1, 0])
    classes = datasets.ClassLabel(names=["Crime", "War"])
    found = found.cast_column("title", classes)
    found.cast_column("genres", datasets.List(classes)).save_to_disk(tmp_path / "a")
    data = load(tmp_path / "a")
    assert dict(zip(data.item_names, data.titles, strict=True)) == {
        "1": "War",
        "2": "2",
        "3": "Crime",
    }
    assert dict(zip(data.item_names, data.genres, strict=True)) == {
        "1": ["Crime"],
        "2": ["War", "Crime"],
        "3": [],
    }
    found.to_parquet(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet").titles == data.titles


def test_classes_are_no_ratings_unless_their_names_are_numbers(tmp_path):
    found = small(rating=[0, 1, 1])
    named = found.cast_column("rating", datasets.ClassLabel(names=["1 star", "2 stars"]))
    named.save_to_disk(tmp_path / "a")
    refused(tmp_path / "a", "column 'rating' is '1 star', not a number")
    found.cast_column("rating", datasets.ClassLabel(names=["3", "4"])).save_to_disk(tmp_path / "b")
    assert sorted(load(tmp_path / "b").rating.tolist()) == [3, 4, 4]


def test_a_class_without_a_name_is_refused(tmp_path):
    meta = {"info": {"features": {"item": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
    schema = pa.schema(
        [("user", pa.string()), ("item", pa.int64())], {"huggingface": json.dumps(meta)}
    )
    table = pa.table({"user": ["a", "b"], "item": [0, 2]}, schema=schema)
    with pa.ipc.new_stream(tmp_path / "my.arrow", schema) as file:
        file.write_table(table)
    refused(tmp_path / "my.arrow", "column 'item' has class 2, of 2 that have names")


def test_types_of_columns(tmp_path):
    times = pd.to_datetime(["2020-01-02", "2020-01-01", "2020-01-03"])
    features = datasets.Features(
        {
            "user": datasets.Value("large_string"),
            "item": datasets.Value("int32"),
            "time": datasets.Value("timestamp[ns]"),
            "title": datasets.Value("string"),
        }
    )
    found = {"user": ["a", "b", "a"], "item": [1, 2, 3], "time": times, "title": ["x", None, "z"]}
    datasets.Dataset.from_dict(found, features=features).save_to_disk(tmp_path / "a")
    data = load(tmp_path / "a")
    assert data.time.tolist() == [1577923200000000, 1578009600000000, 1577836800000000]
    assert data.titles == ["x", "z", "2"]
    small(rating=[1.0, None, 2.0]).save_to_disk(tmp_path / "b")
    refused(tmp_path / "b", "data-00000-of-00001.arrow, row 2: column 'rating' is missing")


def test_rows_that_were_chosen_are_saved_as_chosen(tmp_path):
    found = datasets.Dataset.from_dict(rows())
    chosen = found.shuffle(seed=3).select(range(200))
    chosen.save_to_disk(tmp_path / "a")
    chosen.to_pandas().to_csv(tmp_path / "b.csv", index=False)
    one, other = (load(tmp_path / name, columns=ROLES) for name in ("a", "b.csv"))
    assert len(one) == 200
    assert data_digest(one) == data_digest(other)


def test_what_the_package_leaves_beside_the_data_is_no_data(saved):
    shutil.copy(saved / "data-00000-of-00002.arrow", saved / "cache-0123.arrow")
    assert len(load(saved, columns=ROLES)) == 1200


def test_splits_are_never_joined(tmp_path):
    splits = datasets.DatasetDict({"train": small(), "test": small()})
    splits.save_to_disk(tmp_path / "a")
    refused(tmp_path / "a", "is a DatasetDict with the splits train, test: name the folder of one")
    assert len(load(tmp_path / "a" / "test")) == 3
    (tmp_path / "a" / "dataset_dict.json").write_text('{"splits": [')
    refused(tmp_path / "a", "dataset_dict.json is damaged or cut off")


def change(path, key, value):
    found = json.loads(path.read_text())
    found[key] = value
    path.write_text(json.dumps(found))


def cut(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def other_columns(path):
    with pa.ipc.new_stream(path, pa.schema([("who", pa.string())])) as file:
        file.write_table(pa.table({"who": ["a"]}))


SECOND = "data-00001-of-00002.arrow"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "state.json").unlink(), "has no state.json, so it is no whole folder"),
        (lambda f: (f / "dataset_info.json").unlink(), "has no dataset_info.json"),
        (lambda f: cut(f / "state.json", 0.5), "state.json is damaged or cut off"),
        (lambda f: cut(f / "state.json", 0), "state.json is damaged or cut off"),
        (lambda f: (f / SECOND).unlink(), f"lacks {SECOND}, which its state.json lists"),
        (lambda f: cut(f / SECOND, 0.9), f"{SECOND} cannot be read (Expected to be able to read"),
        (lambda f: cut(f / SECOND, 0), f"{SECOND} is no whole Arrow stream"),
        (lambda f: (f / SECOND).write_text("who,what\na,b\n"), "is no whole Arrow stream"),
        (lambda f: other_columns(f / SECOND), f"{SECOND} lacks the column 'name'"),
        (lambda f: change(f / "state.json", "_data_files", []), "has no rows"),
        (lambda f: change(f / "state.json", "_data_files", "x"), "does not list the files"),
        (
            lambda f: change(f / "state.json", "_data_files", [{"filename": "../a.arrow"}]),
            "does not list the files",
        ),
        (
            lambda f: change(f / "state.json", "_data_files", [{"filename": SECOND}] * 2),
            "lists a file twice",
        ),
        (
            lambda f: change(f / "state.json", "_indices_data_files", [{"filename": "i.arrow"}]),
            "has rows chosen by indices",
        ),
    ],
)
def test_what_is_broken_is_one_line(saved, spoil, message):
    spoil(saved)
    refused(saved, message, columns=ROLES)


def test_no_rows_are_one_line(tmp_path):
    small().select([]).save_to_disk(tmp_path / "a")
    refused(tmp_path / "a", "a has no rows")


def test_an_object_is_kept_once_by_its_rows(tmp_path):
    found = datasets.Dataset.from_dict(rows())
    path = saved_copy(found, tmp_path)
    assert saved_copy(datasets.Dataset.from_dict(rows()), tmp_path) == path
    assert saved_copy(found.select(range(1199)), tmp_path) != path
    assert saved_copy(found.shuffle(seed=1), tmp_path) != path
    other = found.add_column("more", [0] * 1200), found.add_column("more", [1] * 1200)
    assert saved_copy(other[0], tmp_path) != saved_copy(other[1], tmp_path)  # of one size
    assert len(list((tmp_path / "datasets").iterdir())) == 5  # nothing is left behind
    pd.DataFrame(rows()).to_csv(tmp_path / "my.csv", index=False)
    as_text = load(tmp_path / "my.csv", columns=ROLES)
    assert data_digest(load(path, columns=ROLES)) == data_digest(as_text)


def test_objects_that_cannot_be_kept_are_refused(tmp_path):
    both = datasets.DatasetDict({"train": small(), "test": small()})
    stream = small().to_iterable_dataset()
    cases = (
        (both, "has the splits train, test: give one of them, such as dataset['train']"),
        (stream, "is read once only"),
        (small().select([]), "has no rows"),
    )
    for value, message in cases:
        with pytest.raises(UserError, match=message.replace("[", r"\[").replace("]", r"\]")):
            saved_copy(value, tmp_path)


def test_where_there_is_no_writing_it_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*: set \$COTERIE_DATA to another folder"):
        saved_copy(small(), tmp_path / "file")


def test_a_run_on_a_data_set_of_the_hub_that_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    name = hub_name("hf:owner/films@v1#train")
    datasets.Dataset.from_dict(rows()).save_to_disk(name.folder(tmp_path / "data"))
    words = ["train", "f3crec", "--preset", "smoke", "--data", str(name), "--out", str(tmp_path)]
    assert main([*words, "--data.columns", COLUMNS]) == 0, capsys.readouterr().err
    (run,) = (tmp_path / "f3crec").iterdir()
    assert run.name.startswith("films-train-")
    assert str(name) in (run / "config.yaml").read_text()
    assert main(["evaluate", "--run", str(run)]) == 0, capsys.readouterr().err
    assert main(["recommend", "--run", str(run), "--user", "u1"]) == 0, capsys.readouterr().err
    assert "The Film of" in capsys.readouterr().out
