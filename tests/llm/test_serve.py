"""``coterie llm serve``: the command, with the settings of a run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.llm import split_server
from tests.llm.split_process import fork

from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.settings.configuration import configure
from coterie.llm.commands.serve import parse_layers, run
from coterie.llm.experiment import Experiment
from coterie.llm.halves import agreement, cut_backbone, training_of
from coterie.llm.settings import Settings, TrainSettings
from coterie.llm.split.channel import Channel
from coterie.llm.split.remote.channel import GrpcLayers, GrpcSessions
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.tokens import admin_token, client_token, read_secret

SMALL = ["--model.layers", "4", "--model.width", "16", "--pretrain.steps", "5"]
COMMAND = "import sys; from coterie.llm.commands.serve import run; run(sys.argv[1:])"


def test_serves_the_run_of_these_settings(tmp_path: Path) -> None:
    words = [*SMALL, "--out", str(tmp_path)]
    process, said = fork(split_server.command, ["--layers", "1:3", "--port", "0", *words])
    lines = os.fdopen(os.dup(said.fileno()))
    try:
        line = lines.readline()
        address = re.fullmatch(r"serving layers 1:3 at (127\.0\.0\.1:\d+)\n", line)[1]
        experiment = Experiment(configure(find_paper("llm"), words).settings)
        secret = read_secret(tmp_path / "pplr" / "server" / "secret")
        parts = cut_backbone(experiment.backbone, 1, experiment.settings)
        link = Link(address)
        layers = GrpcLayers(link, parts.model, admin_token(secret), 1, optimizer=False)
        channel = Channel(
            GrpcSessions(link, parts.model, lambda client: client_token(secret, client))
        )
        parts.connect(channel)
        layers.use(layers.begin())
        examples = experiment.clients.train[0]
        with channel.session(0, training=True):
            experiment.backbone.eval().loss(examples).backward()
            channel.step()
        assert float(layers.gram(torch.tensor([0]), True)) > 0
    finally:
        process.terminate()
        process.join(30)
    with lines:
        assert lines.read() == "stopped\n"
    assert process.exitcode == 0


def test_sides_agree_on_what_matters() -> None:
    same = agreement(Settings())
    assert agreement(Settings(method="fedavg", rounds=3)) == same
    assert agreement(Settings(seed=1)) != same
    assert agreement(Settings(train=TrainSettings(lr=0.5))) != same
    assert agreement(Settings(method="fedprox")) != same
    assert training_of(Settings(method="fedprox")).mu == Settings().train.mu
    assert training_of(Settings()).mu == 0


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ([], "--layers"),
        (["--layers", "3:2"], "no range"),
        (["--layers", "k:7"], "no range"),
        (["--layers", "1:3", "--prt", "3"], "unknown setting"),
        (["--layers", "1:3", "--port", "99999"], "0 to 65535"),
        (["--layers", "1:3", "--client-ca", "a.pem"], "needs the server's own"),
        (["--layers", "1:3", "--cert", "a.pem"], "belong together"),
        (["--layers", "1:3", "--cert", "a.pem", "--key", "b.pem"], r"cannot read a\.pem"),
        (["--layers", "2:7", *SMALL], "model of 4 layers.*serve it as 2:3"),
        (["--layers", "0:3", *SMALL], "serve it as 1:3"),
        (["--layers", "1:3", *SMALL, "--host", "0.0.0.0"], "--cert and --key"),
    ],
)
def test_mistakes_are_one_line(words: list[str], match: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=match) as caught:
        run([*words, "--out", str(tmp_path)])
    assert "\n" not in str(caught.value)


def test_layers() -> None:
    assert parse_layers("20:31") == (20, 31)


def test_help_is_quick_and_short(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--help"])
    assert ended.value.code == 0
    assert "--client-ca" in capsys.readouterr().out
    heavy = "print([m for m in ('torch', 'grpc', 'transformers') if m in sys.modules])"
    code = f"import atexit; atexit.register(lambda: {heavy}); {COMMAND}"
    out = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert out.stdout.splitlines()[-1] == "[]"
