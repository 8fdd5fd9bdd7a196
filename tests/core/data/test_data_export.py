"""Exports, read back by coterie and by the tools that they are for."""

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
import torch

from coterie.core.cli.main import main
from coterie.core.data.interactions.canonical import MARK, data_digest, exportable
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.catalogue import load, load_filtered
from coterie.core.data.sources.export import FORMATS, export
from coterie.core.errors import UserError
from coterie.core.settings.sections import DataSettings


def sample():
    return load_filtered(DataSettings("sample"))


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_read_back_has_the_same_digest(tmp_path, form):
    found = sample()
    done = export(found, tmp_path / "out", form)
    assert done.rows == len(found)
    assert done.lacks == ("profiles of users",)
    again = load_filtered(DataSettings(str(tmp_path / "out"), min_interactions=0))
    assert data_digest(again) == data_digest(exportable(found))


@pytest.mark.parametrize("form", FORMATS)
def test_rows_that_were_changed_are_a_file_of_ones_own(tmp_path, form):
    found = sample()
    export(found, tmp_path / "out", form)
    kept = load(tmp_path / "out")
    (tmp_path / "out" / MARK).write_text('{"digest": "0"}\n')
    canonical = load(tmp_path / "out")
    assert kept.user_names == found.user_names != canonical.user_names
    assert sorted(canonical.user_names) == sorted(found.user_names)


@pytest.mark.parametrize("form", FORMATS)
def test_all_roles_come_back(tmp_path, form):
    user, item = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 2, 0])
    found = Interactions(
        user,
        item,
        torch.tensor([0, 1, 2, 0, 1]),
        torch.tensor([0.1, 4.5, 1e-7, 3.0, 16777216.0]),
        ['a,"b"', "007"],
        ["books/x/1", "films/x/1", "films/ü"],
        ["NA", 'say "x",\nthen', "1e5"],
        [["A", "B, C"], [], ["null"]],
        "mine",
        split=torch.tensor([0, 1, 2, 0, 2]),
        positions=True,
        domains=["books", "films", "films"],
    )
    done = export(found, tmp_path / "out", form)
    roles = {name: name for name in ("split", "order", "domain")}
    assert "--data.columns order=order,split=split,domain=domain" in done.flags
    again = load(tmp_path / "out", columns=roles)
    assert data_digest(again) == data_digest(found)


def test_pandas_reads_the_same_rows(tmp_path):
    found = sample()
    for form in ("csv", "parquet"):
        export(found, tmp_path / form, form)
    text = pd.read_csv(tmp_path / "csv" / "interactions.csv", dtype={"user": str, "item": str})
    typed = pd.read_parquet(tmp_path / "parquet" / "interactions.parquet")
    for frame in (text, typed):
        assert frame["user"].tolist() == [found.user_names[n] for n in found.user.tolist()]
        assert frame["title"].tolist() == [found.titles[n] for n in found.item.tolist()]
        assert frame["time"].tolist() == found.time.tolist()
        assert frame["rating"].tolist() == found.rating.tolist()


def test_datasets_loads_what_is_written_in_its_form(tmp_path):
    datasets = pytest.importorskip("datasets")
    found = sample()
    export(found, tmp_path / "out")
    loaded = datasets.load_from_disk(tmp_path / "out")
    assert loaded["item"][:] == [found.item_names[n] for n in found.item.tolist()]
    assert loaded[3]["genres"] == found.genres[int(found.item[3])]
    loaded.save_to_disk(tmp_path / "again")  # and what it writes of that is the same data
    shutil.copy(tmp_path / "out" / MARK, tmp_path / "again" / MARK)
    assert data_digest(load(tmp_path / "again")) == data_digest(exportable(found))


def test_the_command(tmp_path, capsys):
    out = tmp_path / "new" / "out"
    assert main(["data", "sample", "--out", str(out), "--format", "csv"]) == 0
    said = capsys.readouterr()
    assert "11,977 interactions of sample" in said.out
    assert f"--data {out} --data.min_interactions 0" in " ".join(said.out.split())
    assert "profiles of users are not exported" in said.err
    assert "left out: 36 of 12,013 rows" in said.err
    assert {path.name for path in out.iterdir()} == {"interactions.csv", MARK}
    assert json.loads((out / MARK).read_text()).keys() == {"digest"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "--format", "csv"], "--format is of an export"),
        (["sample", "--out", "new", "--format", "cvs"], "did you mean 'csv'?"),
        (["--out", "new"], "name it, as coterie data NAME --out DIR"),
        (["cifar-100", "--out", "new"], "'cifar-100' holds labelled samples"),
        (["sample", "--out", "full"], "full is there and not empty"),
        (["sample", "--out", "full/file"], "full/file is there and not empty"),
        (["sample", "--out", "new", "--data.min_rating", "9"], "has no rating of 9 or more"),
    ],
)
def test_what_is_refused_leaves_nothing(tmp_path, monkeypatch, capsys, words, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert main(["data", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert (tmp_path / "full" / "file").read_text() == "mine"


def test_what_has_no_form_is_refused(tmp_path):
    found = sample()
    piped = replace(found, genres=[["A|B"] for _ in found.item_names])
    with pytest.raises(UserError, match=r"genre 'A\|B' holds a"):
        export(piped, tmp_path / "out", "csv")
    export(piped, tmp_path / "hf")
    assert load(tmp_path / "hf").genres[0] == ["A|B"]
    with pytest.raises(UserError, match="is not called by its domain"):
        export(replace(found, domains=["a"] * found.n_items), tmp_path / "out", "hf")
    assert not (tmp_path / "out").exists()
