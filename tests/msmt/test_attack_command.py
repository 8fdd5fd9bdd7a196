"""``coterie msmt attack`` on folders of runs: what it prints, writes and refuses."""

import csv
import json
import os

import pytest

from coterie.core.cli.main import main
from coterie.core.registry.papers import find_paper
from coterie.core.run.runfolder import RunFolder
from coterie.core.settings.schema import build
from coterie.core.settings.sections import PrivacySettings
from coterie.msmt.attack import report
from coterie.msmt.attack.report import described, power_of_two, protections
from coterie.msmt.readings import resolve
from coterie.msmt.settings import Settings

SMALL = {
    "data.name": "world",
    "data.rows": (20, 15),
    "data.valid_rows": 20,
    "data.test_rows": 25,
    "rounds": 3,
    "model.embedding": 2,
    "model.experts": 2,
    "model.expert_layers": (4,),
    "model.tower_layers": (3,),
    "train.batch_size": 10,
    "compare": False,
    "run.progress": False,
    "logger.wandb": "off",
}


def stored(folder, **more):
    settings = {name.replace("__", "."): value for name, value in more.items()}
    chosen = resolve(build(Settings, SMALL | {"run.out": str(folder)} | settings))
    return RunFolder.create(find_paper("pf-msmtrec"), chosen).path


@pytest.fixture
def _undrawn(monkeypatch):
    """No picture, which takes half of the time."""
    monkeypatch.setattr(report, "plot_panels", lambda panels, title, path: path)


def printed(capsys, *words):
    assert main(["msmt", "attack", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_the_command_writes_and_prints_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")  # sentences in one line
    run = stored(tmp_path, method="fedavg")
    words = ("--run", run, "--scales", "0.1", "--rows", "15")
    text = printed(capsys, *words, "--rounds", "1")
    notes = json.loads((run / "attack.json").read_text())["notes"]
    for word in ("none *", "membership", "categories", "test AUC", "∞", *notes):
        assert word in text
        assert word in (run / "attack.md").read_text()
    words = (*words, "--rounds", "2,1")
    rows = json.loads(printed(capsys, *words, "--json"))
    kept = json.loads((run / "attack.json").read_text())
    assert kept["rows"] == rows
    assert kept["method"] == "fedavg"
    assert (run / "attack.png").read_bytes().startswith(b"\x89PNG")
    assert [(row["protection"][:4], row["rounds"]) for row in rows] == [
        ("none", 1),
        ("none", 2),
        ("clip", 1),
        ("clip", 2),
    ]
    for row in rows:
        assert [one["scenario"] for one in row["scenarios"]] == ["scenario 1", "scenario 2"]
        assert [one["rows"] for one in row["scenarios"]] == [15, 15]
        for name in ("auc", "beyond", "auc_loss", "caught", "category_auc", "test_auc"):
            assert 0 <= row[name] <= 1
        mean = sum(one["auc"] for one in row["scenarios"]) / 2
        assert row["auc"] == pytest.approx(mean)
    assert [row["epsilon"] for row in rows[:2]] == [None, None]  # infinite
    assert 0 < rows[2]["epsilon"] < rows[3]["epsilon"]


@pytest.mark.usefixtures("_undrawn")
def test_the_default_rounds_are_those_that_the_run_has_and_numbers_are_the_runs_own(
    tmp_path, capsys
):
    words = [f"--{key}={_typed(value)}" for key, value in SMALL.items()]
    place = ["--run.out", str(tmp_path), "--run.name", "trained"]
    assert main(["train", "pf-msmtrec", *words, *place]) == 0
    run = tmp_path / "pf-msmtrec" / "trained"
    capsys.readouterr()
    out = printed(capsys, "--run", run, "--scales", "0.1", "--json")
    rows = json.loads(out)
    assert [row["rounds"] for row in rows] == [1, 3, 1, 3]
    assert "category_auc" not in rows[0]
    with (run / "metrics.csv").open() as file:
        measured = [float(row["test/auc"]) for row in csv.DictReader(file)]
    assert [row["test_auc"] for row in rows[:2]] == pytest.approx([measured[0], measured[2]])


def _typed(value):
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.usefixtures("_undrawn")
def test_a_run_with_noise_is_attacked_as_it_is_and_without(tmp_path, capsys):
    own = {"privacy__clip": 0.5, "privacy__noise": "gaussian", "privacy__scale": 0.05}
    run = stored(tmp_path, method="fedavg", **own)
    out = printed(capsys, "--run", run, "--rounds", 1, "--scales", "0.1", "--json")
    rows = json.loads(out)
    assert [row["protection"] for row in rows] == [
        "none",
        "clip 0.5, gaussian 0.05 *",
        "clip 0.5",
        "clip 0.5, gaussian 0.1",
    ]
    assert len({row["auc"] for row in rows}) > 2


def test_protections_are_the_runs_own_the_clip_and_the_noise():
    def names(own, largest, clip, scales):
        return [described(each) for each in protections(own, largest, clip, scales)]

    plain = PrivacySettings()
    assert names(plain, 0.3, None, [0.1, 1]) == ["clip 0.5, gaussian 0.1", "clip 0.5, gaussian 1"]
    assert names(plain, 0.3, 2.0, [0.1]) == ["clip 2", "clip 2, gaussian 0.1"]
    laplace = PrivacySettings(clip=3.0, noise="laplace", scale=0.2)
    assert names(laplace, 0.3, None, [0.1]) == [
        "clip 3, laplace 0.2",
        "clip 3",
        "clip 3, gaussian 0.1",
    ]
    entry = PrivacySettings(clip=3.0, clip_by="entry")
    assert names(entry, 0.3, None, [0.1]) == ["clip 3 by entry", "clip 0.5, gaussian 0.1"]
    same = PrivacySettings(clip=2.0, noise="gaussian", scale=0.1)
    assert names(same, 0.3, None, [0.1]) == ["clip 2, gaussian 0.1", "clip 2"]
    kept = protections(PrivacySettings(delta=0.01), 1.0, None, [0.1])
    assert [each.delta for each in kept] == [0.01]
    assert [power_of_two(value) for value in (0.0, 1.0, 1.1)] == [1.0, 1.0, 2.0]


REFUSED = {
    "--rounds 4": "--rounds 4: the run has 3, name rounds up to that",
    "--rounds 0": "--rounds must be whole numbers above 0, as 1,4, not '0'",
    "--rounds x": "--rounds must be whole numbers above 0, as 1,4, not 'x'",
    "--scales 0.1,0": "--scales must be numbers above 0, not '0'",
    "--scales -1": "--scales must be numbers above 0, not '-1'",
    "--scales=-1": "--scales must be numbers above 0, not '-1'",
    "--scales nan": "--scales must be numbers above 0, not 'nan'",
    "--clip inf": "--clip must be numbers above 0, not 'inf'",
    "--clip 0": "--clip must be numbers above 0, not '0'",
    "--rows 0": "expected a whole number above 0, not '0'",
    "--sclaes 1": "did you mean '--scales'?",
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_arguments_are_refused_in_one_line(tmp_path, capsys, words):
    refuse(capsys, ["--run", str(stored(tmp_path)), *words.split()], REFUSED[words])


def refuse(capsys, words, why):
    assert main(["msmt", "attack", *words]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("method", ["local", "central"])
def test_a_run_without_uploads_is_refused(tmp_path, capsys, method):
    refuse(
        capsys, ["--run", str(stored(tmp_path, method=method))], "there are no uploads to attack"
    )


def test_what_is_no_run_of_this_paper_is_refused(tmp_path, capsys):
    refuse(capsys, ["--run", str(tmp_path / "none")], "there is no run")
    refuse(capsys, ["--run", str(tmp_path)], "has no config.yaml")
    refuse(capsys, [], "--run")
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("paper: page\n")
    refuse(capsys, ["--run", str(other)], "is a run of page: coterie msmt attack reads runs of")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys):
    run = stored(tmp_path)
    run.chmod(0o500)
    refuse(capsys, ["--run", str(run)], "cannot write")


def test_the_command_is_listed(capsys):
    assert main(["msmt"]) == 0
    assert "attack" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["msmt", "attack", "--help"])
    assert "--scales" in capsys.readouterr().out
