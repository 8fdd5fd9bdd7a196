"""Who must not get in does not, and what happens in real processes that takes long."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.flower.clusters import deployed, ended, kill, requests, when

from coterie.core.cli.deploy import follow
from coterie.core.flower.certificates import write_authority, write_key
from coterie.core.flower.programs import environment, free_port, program
from coterie.core.flower.trial import Trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
]
PAGE = ["page", "--method", "fedavg", "--data.clients", "4"]


def supernode(home: Path, address: str, *words: str) -> subprocess.Popen[bytes]:
    command = [program("flower-supernode"), "--superlink", address, *words]
    return subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(free_port()), "--max-retries", "2"],
        env={**os.environ, **environment(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_strangers_end_with_a_status_that_is_not_0(tmp_path: Path) -> None:
    server, key = tmp_path / "server", tmp_path / "key"
    server.mkdir()
    write_key(key)
    (tmp_path / "other").mkdir()
    write_authority(tmp_path / "other")
    mine = ["--auth-supernode-private-key", str(key)]
    with Trial(tmp_path / "trial", [], server) as trial:
        ca = ["--root-certificates", str(trial.authority)]
        other = ["--root-certificates", str(tmp_path / "other" / "ca.crt")]
        ways = {
            "unregistered key": [*ca, *mine],
            "no key": ca,
            "plain HTTP": ["--insecure"],
            "another authority": [*other, *mine],
        }
        home = tmp_path / "home"
        started = {how: supernode(home, trial.address, *words) for how, words in ways.items()}
        assert {how: one.wait(120.0) for how, one in started.items()} == dict.fromkeys(ways, 1)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    write_authority(tmp_path, days=-1)
    port = free_port()
    files = [
        *("--ssl-certfile", str(tmp_path / "server.pem"), "--ssl-keyfile"),
        *(str(tmp_path / "server.key"), "--ssl-ca-certfile", str(tmp_path / "ca.crt")),
    ]
    home = tmp_path / "home"
    superlink = subprocess.Popen(
        [program("flower-superlink"), "--host", "127.0.0.1", "--port", str(port), *files],
        env={**os.environ, **environment(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        ca = ["--root-certificates", str(tmp_path / "ca.crt")]
        node = supernode(home, f"127.0.0.1:{port}", *ca)
        assert node.wait(120.0) == 1
    finally:
        superlink.kill()


def online(state: object) -> list[tuple[str, str]]:
    path = Path(str(state["folder"])) / "metrics.csv"  # type: ignore[index]
    with path.open() as file:
        return [(row["fed/online"], row["fed/late"]) for row in csv.DictReader(file)]


def test_an_outage_longer_than_the_deadline_is_named_and_the_node_comes_back(
    tmp_path: Path,
) -> None:
    """A SuperNode that is killed is refused by Flower for most of a minute."""
    root = tmp_path / "d"
    nodes = deployed(root, [*PAGE, "--rounds", "12", "--engine.deadline", "12"])

    def round_is_evaluated() -> bool:
        return any(line.step == "evaluate" and line.turn == 2 for line in requests(nodes))

    with when(round_is_evaluated, lambda: kill("SuperNode", root)) as done:
        state = ended(root, nodes)
    assert done
    assert state["state"] == "finished"
    seen = online(state)
    late = [number for number, (here, late) in enumerate(seen, start=1) if late != "0"]
    assert late
    assert len(late) == 1  # who is late is not waited for again
    assert seen[0] == seen[-1] == ("4", "0")


def test_a_node_that_joins_later_takes_part(tmp_path: Path) -> None:
    root = tmp_path / "d"
    words = ["--engine.start", "20", "--engine.deadline", "30", "--rounds", "6"]
    nodes = deployed(root, [*PAGE, *words])
    trial = Trial(root / "trial", nodes, root / "server")
    start_node, held = trial.start_node, []

    def only_the_first(node: Path) -> object:
        return held.append(node) if node == nodes[1] else start_node(node)

    trial.start_node = only_the_first  # type: ignore[method-assign, assignment]

    def first_round_is_done() -> bool:
        return any(line.turn == 2 for line in requests(nodes[:1]))

    with trial, when(first_round_is_done, lambda: start_node(nodes[1])):
        state = follow(trial, root)
    seen = [here for here, _ in online(state)]
    assert seen[0] == "2"
    assert seen[-1] == "4"
    assert held == [nodes[1]]
