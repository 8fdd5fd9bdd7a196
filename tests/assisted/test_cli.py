"""What a user of mtal can get wrong: one line that names the thing and the remedy, status 2."""

import json
from pathlib import Path

import pytest

from coterie.core.cli.main import main

TINY = ("--rounds", "1", "--train.epochs", "1", "--model.hidden", "8", "--model.code", "4")
QUIET = ("--logger.wandb", "off", "--run.progress", "false")


def csv(folder: Path, rows: list[str]) -> str:
    path = folder / "ratings.csv"
    path.write_text("\n".join(["user,item,rating,domain", *rows]) + "\n")
    return str(path)


def failed(capsys: pytest.CaptureFixture[str], tmp_path: Path, *words: str) -> str:
    out = tmp_path / "runs"
    assert main(["train", "mtal", *TINY, *QUIET, "--run.out", str(out), *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("coterie: error: ")
    assert not out.exists() or not list(out.iterdir())
    return error


def test_nobody_in_common(capsys, tmp_path) -> None:
    error = failed(capsys, tmp_path, "--data.common", "0")
    assert "no two organisations have a user (or item) in common" in error
    assert "raise data.common" in error


def test_nobody_in_common_in_the_data(capsys, tmp_path) -> None:
    rows = [
        f"{d}{u},{d}{i},{1 + (u + i) % 5},{d}" for d in "ab" for u in range(6) for i in range(6)
    ]
    roles = "user=user,item=item,rating=rating,domain=domain"
    words = ("--data.name", csv(tmp_path, rows), "--data.columns", roles)
    error = failed(capsys, tmp_path, *words, "--data.domains", "source")
    assert "no two organisations" in error


def test_an_empty_domain(capsys, tmp_path) -> None:
    rows = [f"{u},i{i},4,a" for u in range(20) for i in range(9)] + ["0,i9,4,b"]
    roles = "user=user,item=item,rating=rating,domain=domain"
    words = ["--data.name", csv(tmp_path, rows), "--data.columns", roles, "--data.domains"]
    words += ["source", "--data.test", "0.4", "--data.valid", "0.5"]  # nearly all is held out
    error = failed(capsys, tmp_path, *words, "--seed", "1")
    assert "domain 'b'" in error
    assert "no rating to train on" in error


def test_data_without_ratings(capsys, tmp_path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(
        "user,item\n" + "\n".join(f"{u},{i}" for u in range(9) for i in range(9)) + "\n"
    )
    words = ("--data.name", str(path), "--data.columns", "user=user,item=item")
    assert "has no ratings" in failed(capsys, tmp_path, *words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--data.domains", "uniform", "--data.count", "5000"), "399 columns cannot be shared out"),
        (("--data.align", "item", "--data.domains", "genre"), "set data.align user"),
        (("--data.align", "item"), "set data.align user"),
        (("--data.scale", "[1,4]"), "has a rating of 5, outside the scale from 1 to 4"),
        (("--data.scale", "[4,1]"), "'data.scale' must be lowest and highest"),
        (("--data.domains", "source"), "does not say which organisation has which item"),
        (("--data.count", "4"), "'data.count' has no effect with the partition genre"),
        (("--data.domains", "uniform", "--data.count", "1"), "'data.count' must be at least 2"),
        (("--data.common", "1.5"), "'data.common' must be"),
        (("--data.valid", "0.7"), "'data.valid' must be"),
        (("--data.test", "0"), "'data.test' must be above 0"),
        (("--assist.eta_rule", "validation", "--data.valid", "0"), "set data.valid above 0"),
        (("--assist.eta_rule", "validation", "--reading", "released"), "other than released"),
        (("--model.name", "mf"), "'model.name' mf is for the methods alone and joint"),
        (("--model.sizes", "Drama=12"), "'model.sizes' of Drama must be as 64-32"),
        (("--model.sizes", "Drma=12-6"), "'model.sizes' names 'Drma'"),
        (("--objectives", "Drama=hubert"), "objective 'hubert' is unknown"),
        (("--objectives", "Drma=huber"), "'objectives' names 'Drma'"),
        (("--train.own_targets", "hidden"), "set train.hide"),
        (("--train.batch_rows", "0"), "'train.batch_rows' must be at least 1"),
        (("--assist.eta", "0"), "'assist.eta' must be above 0"),
        (("--data.name", "ml-10"), "ml-10m"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_one_line(capsys, tmp_path, words, why) -> None:
    assert why in failed(capsys, tmp_path, *words)


def test_a_newcomer_is_refused_in_one_line(capsys, tmp_path) -> None:
    words = ["--run.out", str(tmp_path / "runs"), "--run.name", "a", "--compare", "false"]
    assert main(["train", "mtal", *TINY, *QUIET, *words]) == 0
    history = tmp_path / "history.csv"
    history.write_text("item\n1\n2\n")
    capsys.readouterr()
    run = str(tmp_path / "runs" / "mtal" / "a")
    assert main(["recommend", "--run", run, "--new-user", str(history)]) == 2
    assert "give --user" in capsys.readouterr().err
    assert main(["recommend", "--run", run, "--user", "1", "--top", "3"]) == 0
    assert capsys.readouterr().out.count("\n") >= 4


def test_an_attack_is_on_the_data_that_the_run_was_trained_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [f"{u},{d}{i},{1 + (u + i) % 5},{d}" for d in "ab" for u in range(12) for i in range(6)]
    roles = "user=user,item=item,rating=rating,domain=domain"
    words = ["--data.name", csv(tmp_path, rows), "--data.columns", roles, "--data.domains"]
    words += ["source", "--run.out", str(tmp_path / "runs"), "--run.name", "one"]
    assert main(["train", "mtal", *TINY, *QUIET, *words]) == 0
    csv(tmp_path, [*rows, "11,b9,5,b"])
    run = tmp_path / "runs" / "mtal" / "one"
    capsys.readouterr()
    assert main(["assisted", "attack", "--run", str(run), "--draws", "1"]) == 2
    assert "the data have changed since the run was trained" in capsys.readouterr().err
    assert not (run / "attack.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("method", ["alone", "sums"])
def test_a_run_that_went_on_after_its_best_round_can_be_exported(method, capsys, tmp_path) -> None:
    """The last checkpoint has what organisations kept of the best round."""
    model = {"alone": ("mf", "0.1"), "sums": ("autorec", "0.3")}[method]
    words = ["--method", method, "--model.name", model[0], "--train.lr", model[1], *QUIET]
    given = ["train", "mtal", *TINY, *words, "--rounds", "6", "--run.out", str(tmp_path / "runs")]
    assert main(given) == 0
    (run,) = (tmp_path / "runs").glob("*/*")
    best = json.loads((run / "summary.json").read_text())["metrics"]["test/best_round"]
    assert best < 6
    to = str(tmp_path / "model")
    words = ["--run", str(run), "--client", "1", "--to", to, "--format", "safetensors"]
    assert main(["export", *words]) == 0
    assert "bit for bit" in capsys.readouterr().out
