"""The picture that a run of MTAL leaves beside joint and separate models."""

import json

import pytest
from matplotlib.image import imread
from tests.assisted.ratings_file import words, write_ratings

from coterie.assisted.comparison import compared, panel
from coterie.assisted.experiment import Experiment
from coterie.assisted.paper import PAPER
from coterie.assisted.readings import baseline, resolve
from coterie.assisted.settings import DomainSettings, Settings
from coterie.assisted.tables.study import train as run_of
from coterie.core.metrics.monitor import Monitor
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.training.train import train

UNIFORM = ["--data.domains=uniform", "--data.count=3", "--logger.wandb=off"]


def settings_of(folder, *more):
    return configure(PAPER, words(write_ratings(folder), folder, *UNIFORM, *more)).settings


def test_a_run_says_what_joint_and_separate_models_have(tmp_path):
    settings = settings_of(tmp_path, "--compare=true")
    folder = train(PAPER, settings)
    assert imread(folder / "mtal.png").shape[1] > 500
    summary = json.loads((folder / "summary.json").read_text())
    (note,) = [note for note in summary["notes"] if "mtal.png" in note]
    tests = {"MTAL": summary["metrics"]["test/rmse"]}
    for name in ("Joint AAE", "Alone AAE", "Alone bias model"):
        method, model = name.split()[:2]
        how = baseline(settings, method.lower(), model.lower())
        tests[name] = run_of(how).metrics["test/rmse"]
    said = ", ".join(f"{name} {value:.4f}" for name, value in tests.items())
    assert note == f"mtal.png: test RMSE of {said}"


@pytest.mark.parametrize("more", [["--compare=false"], [], ["--compare=true", "--method=alone"]])
def test_others_leave_none(tmp_path, more):
    assert not (train(PAPER, settings_of(tmp_path, *more)) / "mtal.png").exists()


def test_it_is_made_of_the_sample_unless_told_otherwise():
    assert Settings().compares
    assert not Settings(data=DomainSettings(name="ml-100k")).compares
    assert Settings(data=DomainSettings(name="ml-100k"), compare=True).compares
    assert not Settings(compare=False).compares


def test_rankings_of_unlike_rows_are_not_drawn_side_by_side():
    implicit = DomainSettings(feedback="implicit")
    local, pooled = (
        compared(resolve(Settings(data=implicit, evaluation=how))) for how in ("local", "pooled")
    )
    assert list(local) == ["Alone AAE", "Alone smoothed rate"]
    assert list(pooled) == ["Joint AAE", *local]


def test_the_curve_starts_at_round_0(tmp_path):
    run = FederatedRun(Experiment(settings_of(tmp_path)).federation())
    while not run.finished:
        run.advance()
    monitor = Monitor("eval/rmse", lower_is_better=True)
    found = panel(run, monitor, 9.0, {"Alone AAE": 2.0}).curves
    values = [point.mean for point in found["MTAL, validation"].y]
    assert values == [9.0, *(row["eval/rmse"] for row in run.history)]
    (best,) = found["MTAL, test of the best round"].x
    assert values[int(best)] == min(values)
    assert found["MTAL, test of the best round"].y[0].mean == run.results["test/rmse"]
    assert list(found["Alone AAE, test"].x) == [0, 2]
