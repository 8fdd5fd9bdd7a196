"""Organisations in processes of their own, each with its own folder and token only."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.hosted import Here, TakenApart

from coterie.core.cli.main import main
from coterie.core.engines import processes
from coterie.core.engines.processes import WorkerProcesses
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.llm.client import make_client
from coterie.llm.experiment import Experiment
from coterie.llm.halves import cut_backbone, make_middle
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import admin_token, client_token, make_secret

RUN = ["--rounds", "2", "--model.width", "8", "--model.layers", "3", "--pretrain.steps", "3"]
RUN += ["--data.clients", "2", "--data.shots", "60", "--logger.wandb", "off", "--seed", "3"]
RUN += ["--lora.dropout", "0", "--engine.threads", "1"]


def experiment(out: Path, *more: str) -> Experiment:
    return Experiment(configure(find_paper("pplr"), [*RUN, "--run.out", str(out), *more]).settings)


@pytest.fixture
def taken_apart(tmp_path: Path):
    """A split run whose two clients have folders, and the server of its middle."""
    given = experiment(tmp_path)
    parts = cut_backbone(given.backbone, 1, given.settings)
    secret = make_secret(tmp_path / "secret")
    middle = make_middle(parts, given.settings)
    server = MiddleServer(middle, parts.model, secret, tmp_path / "kept")
    server.start()
    split = ["--split.k", "1", "--split.server", server.address]
    given = experiment(tmp_path, *split, "--split.secret", str(tmp_path / "secret"))
    yield given, TakenApart.of(given, tmp_path, list(torch.arange(2).split(1))), secret
    server.stop(0)


class OneProcess(WorkerProcesses):
    """Client 0 in a process of its own, as both could be, and client 1 in this one."""

    def __init__(self, folders: list[Path], environment: dict[str, str]) -> None:
        super().__init__(folders, "a run", environment=environment)
        self.members[1].node = Here(folders[1])


@pytest.mark.long
def test_a_run_over_them_equals_that_of_one_process(
    taken_apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, apart, secret = taken_apart
    here = FederatedRun(experiment(tmp_path, "--split.k", "1").federation())
    while not here.finished:
        here.advance()
    Path(given.settings.split.secret).rename(tmp_path / "coordinators")
    # The coordinator's own file, which no client can read.
    own = {"split.secret": str(tmp_path / "coordinators")}
    card = replace(apart.card, settings={**apart.card.settings, **own})
    start, commands = subprocess.Popen, []

    def command(words: list[str], **how: object) -> subprocess.Popen:
        own = "from coterie.core.cli.main import main; raise SystemExit(main())"
        commands.append([sys.executable, "-c", own, "llm", "client", *words[3:]])
        return start(commands[-1], **how)

    monkeypatch.setattr(processes.subprocess, "Popen", command)
    paths = os.pathsep.join(sys.path)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    with OneProcess(apart.folders, environment) as exchange:
        there = replace(apart, card=card).over(exchange)
        while not there.finished:
            there.advance()
    assert len(commands) == 1
    assert torch.equal(there.server_state.rows, here.server_state.rows)
    assert there.results == here.results
    for number, folder in enumerate(apart.folders):
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert any(client_token(secret, number).encode() in data for data in files)
        for other in (secret, admin_token(secret), client_token(secret, 1 - number)):
            assert not any(other.encode() in data for data in files)


def test_it_is_nobody_else(taken_apart, tmp_path: Path) -> None:
    given, apart, _ = taken_apart
    folders = apart.folders
    client = make_client(given.card, folders[0])
    with pytest.raises(UserError, match="has no token of client 1"):
        client.channel.open(1, training=True)
    (folders[0] / "split.token").write_text('{"1": "0123"}')
    with pytest.raises(UserError, match="token is not that of client 1"):
        make_client(given.card, folders[0]).channel.open(1, training=True)
    (folders[0] / "split.token").unlink()
    with pytest.raises(UserError, match="own token"):
        make_client(given.card, folders[0])


def test_mistakes_are_one_line(taken_apart, tmp_path: Path, capsys) -> None:
    folders = taken_apart[1].folders
    for words, told in (
        (["--folder", str(tmp_path / "nowhere")], "cannot read"),
        (["--folder", str(folders[0]), "--split.server", "nobody"], "write host:port"),
        ([], "--folder"),
    ):
        assert main(["llm", "client", *words]) == 2
        said = capsys.readouterr().err
        assert told in said
        assert len(said.splitlines()) == 1
