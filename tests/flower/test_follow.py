"""Who follows a deployment starts its server again when it died, and no second one beside it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from coterie.core.cli.deploy import follow
from coterie.core.errors import UserError

SAME = "2026-01-01T00:00:00+00:00"


class FakeTrial:
    """Starts servers that write what they are told to."""

    def __init__(self, root: Path, states: list[dict[str, Any]]) -> None:
        (root / "server").mkdir()
        self.path, self.states, self.submitted = root / "server" / "status.json", states, 0

    def submit(self, folder: Path, config: dict[str, Any]) -> str:
        self.submitted += 1
        state = self.states[min(self.submitted, len(self.states)) - 1]
        # As a ServerApp does: some seconds after it was started.
        threading.Timer(0.05, self.path.write_text, [json.dumps(state)]).start()
        return "7"

    def state(self, number: str) -> str:
        return "running"

    def refusals(self) -> dict[str, str]:
        return {}

    def process(self, name: str) -> Any:
        return type("Kept", (), {"log": Path("superlink.log")})


def told(state: str, pid: int, number: int = 1) -> dict[str, Any]:
    facts = {"state": state, "pid": pid, "round": number, "time": SAME, "nodes": [], "metrics": {}}
    return {**facts, "error": "", "folder": ""}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("coterie.core.cli.deploy._LOOK", 0.01)


def test_a_server_that_died_is_started_once_again(tmp_path):
    """Its last words are of the same second as those of the next, and count for nothing then."""
    dead, alive = told("training", 2**22 - 1), told("finished", os.getpid(), 2)
    trial = FakeTrial(tmp_path, [dead, alive])
    assert follow(trial, tmp_path)["state"] == "finished"
    assert trial.submitted == 2


def test_a_server_that_dies_again_and_again_is_given_up(tmp_path):
    deaths = [told("training", 2**22 - number, 0) for number in range(1, 5)]
    trial = FakeTrial(tmp_path, deaths)
    with pytest.raises(UserError, match=r"ended 3 times without a round: see superlink\.log"):
        follow(trial, tmp_path)
    assert trial.submitted == 3
