"""W&B online that cannot connect: the run is kept offline, and it is said how to upload it."""

import logging
import os
import socket

import pytest
from tests.core.training.leet import history_of, records

from coterie.core.settings.sections import LoggerSettings
from coterie.core.training.loggers import wandb
from coterie.core.training.loggers.wandb import RoundWandbLogger, RunCard

CARD = RunCard("f3crec", "ft", "sample", 3)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture
def deaf():
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def check(folder, caplog, PretendedRounds, fit):
    log = RoundWandbLogger(LoggerSettings(wandb="online"), folder, CARD)
    with caplog.at_level(logging.WARNING):
        fit(PretendedRounds(), [log], folder)
    [line] = [line for line in caplog.messages if "W&B" in line]
    assert line.startswith("W&B is not online (")
    assert line.endswith(f"wandb login, then wandb sync '{folder}/wandb'/offline-run-*")
    [file] = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert len(history_of(records(file))) == 6


def test_without_a_login(tmp_path, caplog, PretendedRounds, fit):
    folder = tmp_path / "my run"
    folder.mkdir()
    check(folder, caplog, PretendedRounds, fit)


def test_a_server_that_does_not_answer(tmp_path, monkeypatch, caplog, deaf, PretendedRounds, fit):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", deaf)
    monkeypatch.setattr(wandb, "CONNECT_SECONDS", 2)
    folder = tmp_path / "my run"
    folder.mkdir()
    check(folder, caplog, PretendedRounds, fit)
