"""Settings that a call in Python gives are those of the command line, and as strict."""

import dataclasses
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import coterie
from coterie.core.front.given import flags_of
from coterie.core.registry.papers import find_paper, load, papers
from coterie.core.settings.configuration import configure, to_yaml


def by_flags(paper, *argv):
    return configure(find_paper(paper), argv).settings


@pytest.fixture(autouse=True)
def _no_account(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)


def test_sections_are_dicts_dataclasses_or_dotted_keys():
    wanted = by_flags("f3crec", "--kd.strength", ".03", "--seed", "4", "--preset", "smoke")
    given = {"seed": 4, "preset": "smoke"}
    assert coterie.settings("f3crec", kd={"strength": 0.03}, **given) == wanted
    assert coterie.settings("f3crec", **{"kd.strength": 0.03}, **given) == wanted
    assert coterie.settings("f3crec", kd=wanted.kd, **given) == wanted


def test_data_are_a_name_a_path_or_a_dict(tmp_path):
    file = tmp_path / "my.csv"
    flags = ("--data", str(file), "--data.columns", "user=u,item=i,time=t")
    wanted = by_flags("f3crec", *flags)
    columns = {"user": "u", "item": "i", "time": "t"}
    for given in ({"path": file, "columns": columns}, {"name": str(file), "columns": columns}):
        assert coterie.settings("f3crec", data=given) == wanted
    assert coterie.settings("f3crec", data=file) == by_flags("f3crec", "--data", str(file))
    assert coterie.settings("f3crec", data="ml-100k") == by_flags("f3crec", "--data", "ml-100k")


def test_numbers_of_numpy_and_tuples_are_as_good():
    found = coterie.settings("f3crec", seed=np.int64(3), kd={"strength": np.float64(0.5)})
    assert found == by_flags("f3crec", "--seed", "3", "--kd.strength", ".5")
    steps = coterie.settings(
        "f3crec", privacy={"noise": "laplace", "scale": 1, "steps": ("update",)}
    )
    assert steps.privacy.steps == ("update",)


@pytest.mark.parametrize("paper", papers())
def test_an_object_and_a_file_of_settings_come_through_whole(paper, tmp_path):
    found = coterie.settings(paper, preset="smoke", seed=3)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(found, paper))
    assert coterie.settings(paper, config=file) == found
    assert coterie.settings(paper, config=[str(file)], seed=5) == dataclasses.replace(found, seed=5)


def test_an_object_wins_over_the_environment(monkeypatch):
    from coterie.core.front.given import configured

    found = coterie.settings("f3crec", logger={"wandb": "online"})
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert configured(find_paper("f3crec"), {}, "train()", own=found).settings == found


def test_what_is_given_beside_an_object_wins():
    from coterie.core.front.given import configured

    own = coterie.settings("f3crec", preset="smoke", seed=3)
    found = configured(find_paper("f3crec"), {"seed": 4}, "train()", own=own).settings
    assert found == dataclasses.replace(own, seed=4)


WRONG = [
    ({"rouns": 3}, "unknown setting 'rouns' in train(): did you mean 'rounds'?"),
    ({"preste": "smoke"}, "unknown setting 'preste' in train(): did you mean 'preset'?"),
    ({"strength": 1}, "unknown setting 'strength' in train(): did you mean 'kd.strength'?"),
    (
        {"kd": {"stength": 1}},
        "unknown setting 'kd.stength' in train(): did you mean 'kd.strength'?",
    ),
    ({"kd": 3}, "'kd' in train() is a section, not one value: it has kd.strength"),
    ({"rounds": "ten"}, "'rounds' in train(): expected a whole number, not 'ten'"),
    ({"rounds": 2.5}, "'rounds' in train(): expected a whole number, not '2.5'"),
    ({"rounds": True}, "'rounds' in train(): expected a whole number, not 'True'"),
    ({"rounds": None}, "'rounds' in train(): expected a whole number, not null"),
    ({"rounds": 0}, "'rounds' must be at least 1, not 0"),
    ({"data": 3}, "'data' in train() is a section, not one value: it has data.name, data.root"),
    ({"data": {"name": "a", "path": "b"}}, "'data' has a name and a path: give one of them"),
    (
        {"data": "a", "data.name": "b"},
        "'data.name' is given twice in train(): leave one of them out",
    ),
    ({"name": "a", "run": {"name": "b"}}, "'run.name' is given twice in train(): leave one"),
    ({"data": "ml-100"}, "data set 'ml-100' is neither a known name nor a file: did you mean"),
    ({"data": "no.csv"}, "there is no file no.csv: check the path"),
    ({"preset": "smok"}, "preset 'smok' is unknown: did you mean 'smoke'?"),
    ({"variant": "bset"}, "variant 'bset' of f3crec is unknown: did you mean 'best'?"),
    ({"config": "no.yaml"}, "there is no file no.yaml"),
    (
        {"run": {"resume": True}},
        "'run.resume' is not for train(): say coterie.load(folder).resume()",
    ),
]


@pytest.mark.parametrize(("given", "why"), WRONG, ids=lambda value: str(value)[:40])
def test_mistakes_are_one_line(tmp_path, monkeypatch, given, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(coterie.UserError) as caught:
        coterie.train("f3crec", **given)
    assert str(caught.value).startswith(why)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_paper_and_settings_of_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(coterie.UserError, match="paper 'f3crek' is not installed: did you mean"):
        coterie.train("f3crek")
    other = coterie.settings("f3crec")
    with pytest.raises(coterie.UserError, match="these settings are of f3crec, not of mtal"):
        coterie.train("mtal", other)
    with pytest.raises(coterie.UserError, match="dict is no settings object of mtal"):
        coterie.train("mtal", {"rounds": 3})
    with pytest.raises(coterie.UserError, match="a settings object is complete"):
        coterie.train("f3crec", other, preset="smoke")
    loose = dataclasses.replace(other, rounds=2.5)
    with pytest.raises(
        coterie.UserError, match="'rounds' in the settings object: expected a whole"
    ):
        coterie.train("f3crec", loose)
    assert list(tmp_path.iterdir()) == []


def test_flags_are_by_dotted_key():
    found = flags_of(find_paper("f3crec"), {"data": "x", "kd": {"strength": 1}}, "train()")
    assert found == {"data.name": "x", "kd.strength": 1.0}


# What there is


def test_listings_are_mappings_that_print():
    found = coterie.papers()
    assert list(found) == list(papers())
    assert found["pplr"].package == "llm"
    assert repr(found).count("\n") == len(found) - 1
    assert "<table>" in found._repr_html_()
    assert found.get("nothing") is None
    assert "nothing" not in found
    with pytest.raises(coterie.UserError, match="paper 'f3crek' is unknown: did you mean 'f3crec'"):
        found["f3crek"]
    assert "sample" in coterie.data_sets()


def test_methods_are_those_of_the_registry():
    from coterie.core.methods.registry import METHODS

    assert list(coterie.methods) == list(METHODS)
    for name, method in METHODS.items():
        assert coterie.methods[name].settings is method.settings
        assert 10 < len(coterie.methods[name].about) < 100
        short = method.settings.__name__.removesuffix("Settings")
        assert getattr(coterie.methods, short) is method.settings
        assert short in dir(coterie.methods)
    with pytest.raises(AttributeError, match="has no 'Scafold'; it has FedAvg"):
        coterie.methods.Scafold  # noqa: B018


def test_settings_of_every_paper_are_its_own_class():
    for name, paper in papers().items():
        assert type(coterie.settings(name)) is load(paper.settings)


def rows():
    """Histories of 40 people, in the columns of one's own."""
    draw = np.random.default_rng(3)
    people = np.repeat(np.arange(40), 12)
    items = np.concatenate([draw.choice(60, 12, replace=False) for _ in range(40)])
    columns = {"who": people, "what": items, "stars": draw.integers(1, 6, len(people)) * 1.0}
    return columns | {"when": draw.permutation(len(people))}


def test_data_are_an_object_too(tmp_path, monkeypatch):
    """A frame, a table and a data set have the numbers of the CSV file of the same rows."""
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_MODE", "disabled")
    roles = {"user": "who", "item": "what", "rating": "stars", "time": "when"}
    frame = pd.DataFrame(rows(), index=np.arange(480)[::-1])  # the index is no column
    frame.to_csv(tmp_path / "my.csv", index=False)

    def metrics(data, **more):
        given = {"path": data, "columns": roles, **more}
        run = coterie.train(
            "f3crec", preset="smoke", data=given, rounds=1, out=tmp_path / "runs", quiet=True
        )
        return run, run.metrics

    _, wanted = metrics(tmp_path / "my.csv")
    run, found = metrics(frame)
    assert found == wanted
    assert Path(run.config.data.name).parent == tmp_path / "data" / "datasets"
    assert run.evaluate().items() <= wanted.items()  # the object is not needed any more
    table = pa.table(rows())
    for other in (table, datasets.Dataset(table), frame.assign(who=frame["who"].astype("string"))):
        assert metrics(other)[1] == wanted
    elsewhere, _ = metrics(table, root=str(tmp_path / "other"))
    assert Path(elsewhere.config.data.name).parent == tmp_path / "other" / "datasets"


def test_a_frame_alone_is_data(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    frame = pd.DataFrame({"user": [1, 2], "item": ["a", "b"]})
    made = coterie.settings("f3crec", data=frame)
    assert made.data.name == coterie.settings("f3crec", data=frame.copy()).data.name
    assert made.data.name != coterie.settings("f3crec", data=frame[::-1]).data.name
    for wrong, words in (
        (frame[:0], "the DataFrame has no rows"),
        (frame.assign(user=[1, "a"]), "the DataFrame is no table .*'?user"),
        (pd.concat([frame, frame], axis=1), "the DataFrame is no table .*Duplicate"),
        (frame["user"], "'data' in settings\\(\\) is a section, not one value"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": [1]})}), "has the splits"),
    ):
        with pytest.raises(coterie.UserError, match=words):
            coterie.settings("f3crec", data=wrong)
