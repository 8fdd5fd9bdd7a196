"""An offline W&B run of MTAL, read back with W&B's own tool."""

import json
import os
import subprocess
import sys

import pytest

from coterie.core.cli.main import main
from coterie.core.privacy.accountant import epsilon
from coterie.core.settings.sections import PrivacySettings

TINY = ["--rounds", "2", "--train.epochs", "2", "--model.hidden", "16", "--model.code", "8"]
PRIVACY = {"clip": 2.0, "clip_by": "entry", "noise": "laplace", "scale": 8.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of two rounds, with noise on residuals."""
    folder = tmp_path_factory.mktemp("run")
    noise = [word for name, value in PRIVACY.items() for word in (f"--privacy.{name}", str(value))]
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder / "home"))
        flags = [*TINY, *noise, "--privacy.steps", "[residual]", "--assist.weights", "optimal"]
        out = ["--run.out", str(folder), "--logger.histogram_every", "1", "--run.progress", "false"]
        out += ["--compare", "false"]  # trains nothing beside
        assert main(["train", "mtal", *flags, *out]) == 0
    [found] = folder.glob("mtal/sample*")
    return found


@pytest.fixture(scope="module")
def history(run):
    [file] = run.glob("wandb/offline-run-*/run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line["history"]["item"] for line in lines if line["type"] == "history"]


@pytest.mark.long
def test_every_round_shows_what_organisations_chose(history) -> None:
    rounds = [item for item in history if "eval/rmse" in item]
    assert [item["round"] for item in rounds] == [1, 2]
    for item in rounds:
        assert item["mtal/eta"] == pytest.approx(0.3)
        assert item["mtal/residual_norm"] > 0
        assert 0 < item["eval/rmse"] < 5
        assert 0 < item["eval/map@10"] < 1
        assert 0 < item["eval/ndcg@10"] < 1
        assert item["cost/up_bytes"] > 1000
        assert item["cost/local_steps"] == 9 * 2 * 3  # organisations x epochs x batches
    for name in ("rmse", "map@10", "ndcg@10"):
        assert rounds[-1][f"test/{name}"] > 0


def test_weights_are_a_histogram_of_all_that_organisations_give(history) -> None:
    [first, _] = [item for item in history if "eval/rmse" in item]
    assert first["clients/mtal/weights._type"] == "histogram"
    assert sum(first["clients/mtal/weights.values"]) == 9 * 9
    bins = first["clients/mtal/weights.bins"]
    assert 0 <= bins[0] < bins[-1] <= 1


def test_epsilon_is_that_of_every_residual_so_far(history) -> None:
    spent = [item["privacy/epsilon"] for item in history if "privacy/epsilon" in item]
    settings = PrivacySettings(**PRIVACY, steps=("residual",))
    assert spent == pytest.approx([epsilon(settings, 1), epsilon(settings, 2)])


def test_the_table_has_a_row_for_each_organisation_and_round(run) -> None:
    domains = json.loads((run / "clients.json").read_text())
    assert [row["domain"] for row in domains][:2] == ["Action", "Animation"]
    assert all(row["rmse"] > 0 for row in domains)
