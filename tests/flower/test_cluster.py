"""A deployment in real processes: TLS, keys, kills, strangers; the bits of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.flower.clusters import (
    PROGRAMS,
    bits,
    deployed,
    kill,
    processes,
    requests,
    undisturbed,
    when,
)

from coterie.core.cli.deploy import follow
from coterie.core.cli.main import main
from coterie.core.flower.certificates import write_key
from coterie.core.flower.programs import environment, free_port, program
from coterie.core.flower.trial import Trial

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are found by what Linux tells of them"
)
WORDS = ["page", "--method", "scaffold", "--data.clients", "4", "--rounds", "2"]


def stranger(root: Path, trial: Trial, *words: str) -> subprocess.Popen[bytes]:
    """A SuperNode that nobody has registered."""
    home = environment(root / "stranger")
    command = [program("flower-supernode"), "--superlink", trial.address, *words]
    return subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(free_port())],
        env={**os.environ, **home},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.long
def test_a_deployment_survives_kills_and_strangers_with_the_bits_of_one_process(tmp_path, capsys):
    root = tmp_path / "d"
    nodes = deployed(root, WORDS)
    # What the server sends is not run where the clients are.
    sent = root / "coterie_app" / "client_app.py"
    sent.write_text(f"open({str(tmp_path / 'was here')!r}, 'w')\n{sent.read_text()}")
    key = tmp_path / "strange.key"
    write_key(key)

    def update_is_answered() -> bool:
        return any(line.step == "update" for line in requests(nodes))

    def second_round_is_evaluated() -> bool:
        return any(line.step == "evaluate" and line.turn == 2 for line in requests(nodes))

    with Trial(root / "trial", nodes, root / "server") as trial:
        known = ["--root-certificates", str(trial.authority)]
        strangers = [
            stranger(root, trial, *known, "--auth-supernode-private-key", str(key)),
            stranger(root, trial, *known),
        ]
        with (
            when(update_is_answered, lambda: kill("worker", root)) as first,
            when(second_round_is_evaluated, lambda: kill("ServerApp", root)) as second,
        ):
            state = follow(trial, root)
        assert [one.wait(60.0) != 0 for one in strangers] == [True, True]
    assert first
    assert second
    assert (state["state"], state["round"], state["epoch"]) == ("finished", 2, 2)
    assert bits(root, state) == undisturbed(root)
    assert not (tmp_path / "was here").exists()
    assert not any(processes(name, root) for name in PROGRAMS)
    capsys.readouterr()
    assert main(["node", "audit", str(nodes[0]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    steps = {row["step"] for row in found["requests"]}
    assert {"@present", "@enrol", "update", "evaluate"} <= steps
    assert {row["epoch"] for row in found["requests"]} == {1, 2}
    assert all(said.startswith("round 2 of run") for said in found["remarks"])
    assert main(["deploy", "status", str(root)]) == 0
    assert "page, run-1: finished, round 2" in capsys.readouterr().out
