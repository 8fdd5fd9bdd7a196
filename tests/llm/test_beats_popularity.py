"""`coterie train pplr` as it comes recommends better than what is popular, to the same users."""

import json

import pytest

from coterie.core.cli.main import main

pytestmark = pytest.mark.slow


def recalls(folder, *flags):
    """Test Recall@10 of a run, and of popularity on its users."""
    quiet = ["--run.out", str(folder), "--run.progress", "false", "--logger.wandb", "off"]
    assert main(["train", "pplr", *quiet, *flags]) == 0
    [summary] = folder.glob("pplr/*/summary.json")
    metrics = json.loads(summary.read_text())["metrics"]
    return metrics["test/recall@10"], metrics["test/popularity/recall@10"]


def test_pplr_beats_popularity_on_the_sample(tmp_path, capsys):
    ours, popularity = recalls(tmp_path)
    assert ours > popularity > 0


@pytest.mark.real_data
def test_pplr_beats_popularity_on_ml_100k(data_root, tmp_path, capsys):
    ours, popularity = recalls(tmp_path, "--data", "ml-100k", "--data.root", str(data_root))
    assert ours > popularity > 0
