"""The commits behind the numbers of a run, and nothing where there are none."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.core.training.leet import records

import coterie
from coterie.core.run import origin
from coterie.core.run.checkpoint import read_checkpoint
from coterie.core.run.origin import commit_of, commits
from coterie.core.training.loggers.public_model import write_public_model


def git(folder, *words):
    names = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "mine.py").write_text("1")
    (tmp_path / ".gitignore").write_text("site\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_the_commit_is_that_of_git(repository, monkeypatch):
    monkeypatch.chdir(repository)
    assert commits()["working"] == git(repository, "log", "-1", "--format=%H")


def test_what_is_changed_and_not_committed_is_marked(repository):
    clean = commit_of(repository)
    (repository / "new.py").write_text("not of the repository")
    assert commit_of(repository) == clean
    (repository / "mine.py").write_text("2")
    assert commit_of(repository) == f"{clean}+"


def test_what_is_installed_below_a_repository_is_none_of_it(repository):
    site = repository / "site"
    site.mkdir()
    (site / "origin.py").write_text("2")
    assert commit_of(site) is not None
    assert commit_of(site, "origin.py") is None
    assert commit_of(repository, "mine.py") == commit_of(repository)


def test_there_is_none_without_a_repository_a_commit_or_git(tmp_path, monkeypatch):
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) is None
    assert commit_of(tmp_path / "gone") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commits() == {"working": None, "coterie": None}


def test_git_that_hangs_or_talks_is_no_error(tmp_path, monkeypatch):
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\necho not a commit\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert commit_of(Path.cwd()) is None
    fake.write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(origin, "_SECONDS", 0.2)
    assert commit_of(Path.cwd()) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose model W&B keeps."""
    given = {"preset": "smoke", "quiet": True, "rounds": 1, "logger": {"model": True}}
    return coterie.train("f3crec", out=tmp_path_factory.mktemp("origin"), name="one", **given)


@pytest.fixture(scope="module")
def lines(run):
    [file] = run.folder.glob("wandb/offline-run-*/run-*.wandb")
    return records(file)


def test_the_summary_and_wandb_say_what_made_the_numbers(run, lines):
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["git"] == commits()
    assert summary["data_digest"] == run._open()[1].bound["data"]
    configs = [line["config"]["update"] for line in lines if line["type"] == "config"]
    config = {name: value for one in configs for name, value in one.items()}
    assert config["data_digest"] == summary["data_digest"]
    assert (config["paper"], config["git.working"]) == ("f3crec", commits()["working"])


def test_the_model_is_what_the_server_holds_and_nothing_of_a_client(run, lines):
    artifacts = [line["artifact"] for line in lines if line["type"] == "artifact"]
    [model] = [one for one in artifacts if one["type"] == "model"]
    assert {one["path"] for one in model["manifest"]["contents"]} == {"server.safetensors"}
    file = run.folder / "wandb" / "server.safetensors"
    best = read_checkpoint(run.folder / "checkpoints" / "best.ckpt")["federation"]
    kept = load_file(file)
    assert torch.equal(kept["items"], best["server"]["items"])
    assert json.loads(model["metadata"])["round"] == best["round"]
    staged = [path.read_bytes() for path in (run.folder / "wandb").rglob("*") if path.is_file()]
    assert any(bytes(best["server"]["items"][3].numpy()) in content for content in staged)
    rows = [row for row in best["store"]["rows"]["params"]["user"] if row.abs().sum()]
    assert len(rows) > 50
    for row in rows:
        assert not any(bytes(row.numpy()) in content for content in staged)


def test_there_is_no_model_of_a_run_without_a_checkpoint(tmp_path):
    assert write_public_model(tmp_path, tmp_path / "server.safetensors") is None
    assert list(tmp_path.iterdir()) == []
