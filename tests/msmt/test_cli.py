"""PF-MSMTrec from the command line: its commands, and one line for what a user gets wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.core.cli.main import main

NETWORK = ["--model.embedding", "2", "--model.experts", "2", "--model.expert_layers", "[4,3]"]
NETWORK += ["--model.tower_layers", "[3]", "--train.batch_size", "16", "--rounds", "2"]
WORLD = ["--data.name", "world", "--data.rows", "[40,23]", "--data.valid_rows", "20"]
WORLD += ["--data.test_rows", "20"]
QUIET = ["--logger.wandb", "off", "--run.progress", "false"]


def train(out: Path, *words: str, data: list[str] = WORLD) -> int:
    return main(["train", "pf-msmtrec", *data, *NETWORK, *QUIET, "--run.out", str(out), *words])


def failed(capsys: pytest.CaptureFixture[str], out: Path, *words: str, **more: Any) -> str:
    """The one line that a run ends in, which leaves nothing behind."""
    assert train(out, *words, **more) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("coterie: error: ")
    assert not list(out.rglob("*"))
    return said


def table(folder: Path, scenarios: dict[str, dict[str, int]], silent: str = "") -> list[str]:
    """A file of impressions with two tasks that are no funnel; one scenario may have one class."""
    lines = ["country,kind,price,like,share,part"]
    for name, parts in scenarios.items():
        for part, count in parts.items():
            for i in range(count):
                like = 0 if name == silent else i % 2
                lines.append(f"{name},{'abc'[i % 3]},{0.1 * i:.1f},{like},{i % 3 == 0:d},{part}")
    (folder / "seen.csv").write_text("\n".join(lines) + "\n")
    own = ["--data.scenario", "country", "--data.tasks", "[like,share]", "--data.split", "part"]
    return ["--data.name", str(folder / "seen.csv"), *own]


WHOLE = {"train": 30, "valid": 12, "test": 12}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--model.name mmo", "did you mean 'mmoe'?"),
        ("--model.name mmoe", "set model.name to template"),
        ("--method fedavgg", "did you mean 'fedavg'?"),
        ("--reading released", "no code of PF-MSMTrec was released"),
        ("--reading litteral", "did you mean 'literal'?"),
        ("--pf.generator full --model.embedding 256 --model.expert_layers [512]", "'factored'"),
        ("--pf.upload factored --pf.generator leaf", "set pf.generator to factored"),
        ("--pf.c -0.1", "'pf.c' must be at least 0"),
        ("--pf.lam -1", "'pf.lam' must be at least 0"),
        ("--pf.share [embedding]", "a list of embeddings, experts, gates"),
        ("--pf.increments average", "did you mean 'averages'?"),
        ("--model.dropout 1", "'model.dropout' must be from 0 to below 1"),
        ("--model.experts 0", "'model.experts' must be at least 1"),
        ("--model.expert_layers []", "'model.expert_layers' must be numbers of units"),
        ("--model.tower_layers [3,0]", "'model.tower_layers' must be numbers of units"),
        ("--method local --privacy.clip 1", "none is sent: leave them out"),
        ("--method central --privacy.clip 1", "the server has the samples themselves"),
        ("--privacy.noise gaussian", "positive privacy.scale"),
        ("--privacy.steps [updat] --privacy.clip 1", "did you mean 'update'?"),
        ("--train.participation 0", "'train.participation' must be above 0"),
        ("--train.batch_size 0", "'train.batch_size' must be at least 1"),
        ("--train.batch_size 1", "raise the batch size"),
        ("--train.optimizer adamw", "did you mean 'adam'?"),
        ("--data.name wrld", "did you mean 'world'?"),
        ("--data.rows [40,1]", "client 1 has a single training sample"),
        ("--pf.psy false", "did you mean '--pf.psi'?"),
        ("--run.resume true --run.name nothing", "there is no run"),
    ],
)
def test_mistakes_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert says in failed(capsys, tmp_path, *words.split())


@pytest.mark.parametrize("name", ["esmm", "aitm"])
def test_networks_of_a_funnel_need_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data = table(tmp_path, {"NL": WHOLE, "ES": WHOLE})
    said = failed(capsys, tmp_path / "runs", "--method", "fedavg", "--model.name", name, data=data)
    assert "tasks that follow from one another" in said


@pytest.mark.parametrize(
    ("own", "says"),
    [(1, "has a single training sample"), (0, "scenario 'ES' has no training sample")],
)
def test_a_scenario_that_cannot_be_trained_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own: int, says: str
) -> None:
    data = table(tmp_path, {"NL": WHOLE, "ES": {**WHOLE, "train": own}})
    assert says in failed(capsys, tmp_path / "runs", data=data)


def test_data_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, place = tmp_path / "runs", ["--data.root", str(tmp_path)]
    said = failed(capsys, out, data=["--data.name", "census-income", *place])
    assert "put its files into" in said
    own = ["--data.name", str(tmp_path / "no.csv"), "--data.scenario", "a", "--data.tasks", "[b]"]
    assert "no.csv" in failed(capsys, out, data=own)


def test_one_class_alone_is_told_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = table(tmp_path, {"NL": WHOLE, "ES": WHOLE}, silent="ES")
    assert train(tmp_path, data=data) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "test part of scenario 'ES' has one class only: no AUC of like" in said
    folder = tmp_path / "pf-msmtrec" / "seen-pf-msmtrec-template-seed0"
    silent, other = json.loads((folder / "clients.json").read_text())
    assert (silent["scenario"], other["scenario"]) == ("ES", "NL")
    assert silent["like"] is None
    found = json.loads((folder / "summary.json").read_text())["metrics"]
    assert found["last/auc_like"] == pytest.approx(other["like"])
    assert found["last/auc_share"] == pytest.approx((silent["share"] + other["share"]) / 2)


def test_training_that_diverges_everywhere_is_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "--train.lr", "1e9") == 2
    told = capsys.readouterr().err
    assert "nobody's answer to 'update' counts" in told
    assert "NaN or infinity in upload" in told
    assert not list(tmp_path.rglob("summary.json"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with noise."""
    out = tmp_path_factory.mktemp("run")
    noise = ["--privacy.clip", "0.5", "--privacy.noise", "gaussian", "--privacy.scale", "0.1"]
    assert train(out, *noise, "--run.name", "a") == 0
    return out / "pf-msmtrec" / "a"


def test_the_folder_says_what_was_run(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["pf"]["increments"] == "parameters"  # the reading's choices are filled in
    assert config["pf"]["fedbn"] == "increment"
    found = json.loads((run / "summary.json").read_text())
    for name in ("auc", "auc_ctr", "auc_ctcvr", "loss"):
        assert found["metrics"][f"test/{name}"] > 0
        assert found["metrics"][f"last/{name}"] > 0
    assert found["metrics"]["test/best_round"] in (1.0, 2.0)
    rows = json.loads((run / "clients.json").read_text())
    assert [row["scenario"] for row in rows] == ["scenario 1", "scenario 2"]
    assert [row["train"] for row in rows] == [40, 23]
    mean = sum(row["ctr"] for row in rows) / 2
    assert mean == pytest.approx(found["metrics"]["last/auc_ctr"])
    assert (run / "curves.png").stat().st_size > 1000


def test_evaluate_measures_the_last_models_again(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--run", str(run), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    found = json.loads((run / "summary.json").read_text())["metrics"]
    for name in ("auc", "auc_ctr", "auc_ctcvr", "loss"):
        assert measured[f"test/personal_{name}"] == pytest.approx(found[f"last/{name}"], rel=1e-6)


def test_there_is_nothing_to_recommend(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--run", str(run), "--user", "1"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "there are no items to recommend" in said


def test_the_privacy_table_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", "pf-msmtrec", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    up = {row["field"]: row for row in rows if row["message"] == "ScenarioUpdate"}
    assert set(up) == {"scenario", "towers", "affine", "shared", "samples", "loss"}
    covered = {name for name, row in up.items() if row["noise"] == "covered"}
    assert covered == {"scenario", "towers", "affine", "shared"}
    assert not any("statistics" in row["depends on"] for row in up.values())
    assert up["samples"]["depends on"] == "-"
    down = {row["field"] for row in rows if row["message"] == "Aggregate"}
    experts = {"mean", "direction", "average"}
    assert down == experts | {"tower_mean", "tower_direction", "shared"}
    assert main(["privacy", "pf-msmtrec"]) == 0


def test_other_commands_know_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"pf-msmtrec: .*Multi-Scenario", said)
    assert "coterie.msmt" in said
    assert main(["data"]) == 0
    assert "scenarios that agree as far as data.shift" in " ".join(capsys.readouterr().out.split())
    assert main(["data", "world"]) == 0
    assert "generated anew" in capsys.readouterr().out
    assert main(["doctor"]) == 0
    assert "pf-msmtrec" in capsys.readouterr().out


def test_the_budget_of_noise_is_counted(run: Path) -> None:
    header, *rows = (run / "metrics.csv").read_text().splitlines()
    column = header.split(",").index("privacy/epsilon")
    spent = [float(row.split(",")[column]) for row in rows]
    assert 0 < spent[0] < spent[1]


def test_an_attack_is_on_the_data_that_the_run_was_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {"NL": WHOLE, "ES": WHOLE}
    data = table(tmp_path, parts)
    assert train(tmp_path / "runs", "--run.name", "one", data=data) == 0
    run = tmp_path / "runs" / "pf-msmtrec" / "one"
    table(tmp_path, {**parts, "ES": {**WHOLE, "train": 31}})
    capsys.readouterr()
    attack = ["msmt", "attack", "--run", str(run), "--rounds", "1", "--scales", "0.1"]
    assert main(attack) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "the data have changed since the run was trained" in said
    assert not (run / "attack.json").exists()
    table(tmp_path, parts)
    assert main(attack) == 0
