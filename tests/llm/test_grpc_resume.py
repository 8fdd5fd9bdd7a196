"""A killed coordinator goes on, whatever lies between its checkpoints; or it does not begin."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.llm.every_backbone import make
from tests.llm.organisations import organisations, settings

from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import RunSettings
from coterie.llm.algorithm import PPLR
from coterie.llm.client import Organisation
from coterie.llm.commands import serve
from coterie.llm.settings import ModelSettings, Settings, SplitSettings
from coterie.llm.split.grpc_server import MiddleServer
from coterie.llm.split.halves import split_backbone
from coterie.llm.split.serving import cut_backbone, make_middle, rounds_to_keep
from coterie.llm.split.tokens import make_secret
from coterie.llm.split.training import Limits

EVERY = 3
Start = Callable[[Settings, int], str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server with ``--keep``, anew with the same state if one runs; give its address."""
    running: list[MiddleServer] = []

    def started(chosen: Settings, keep: int) -> str:
        for server in running:
            server.stop(0)
        parts = cut_backbone(make("recformer", rank=None).double(), 1, chosen)
        middle = make_middle(parts, chosen, Limits(keep=keep), tmp_path)
        server = MiddleServer(middle, parts.model, make_secret(tmp_path / "secret"))
        server.start()
        running.append(server)
        return server.address

    yield started
    for server in running:
        server.stop(0)


def run_settings(stages: int, **split: object) -> Settings:
    """All items are within the first ten: the first round is the best, and nothing better ends
    the waiting. With two stages, the first ends with round 3, where the checkpoint is."""
    return settings(
        model=ModelSettings(name="recformer"),
        rounds=9,
        patience=2 if stages == 2 else 9,
        train={"lr": 0.02, "patience_frozen": 9, "stages": stages, "keep_optimizer": stages == 1},
        run=RunSettings(checkpoint_every=EVERY),
        split=SplitSettings(k=1, **split),
    )


def coordinator(chosen: Settings) -> FederatedRun:
    model = make("recformer", rank=None).double()
    halves = split_backbone(model, chosen)
    client = Organisation(chosen, model, halves.channel)
    server = PPLR(chosen, 3, client.adapter.row(), halves)
    blocks = [organisations(sizes=(5, 3, 4), users=(2, 1, 1))]
    return FederatedRun(Federation(server=server, client=client, blocks=blocks, seed=5, rounds=18))


def saved(module: FederatedRun) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(module.to_plain(), file)
    file.seek(0)
    return file


@pytest.mark.parametrize("stages", [1, 2])
def test_killed_just_before_the_next_checkpoint(stages: int, start: Start, tmp_path: Path) -> None:
    chosen = run_settings(stages)
    needed = rounds_to_keep(chosen)
    assert needed == EVERY + stages

    def connected(keep: int) -> FederatedRun:
        flags = {"server": start(chosen, keep), "secret": str(tmp_path / "secret")}
        return coordinator(run_settings(stages, **flags))

    first = connected(needed)
    for _ in range(EVERY):
        first.advance()
    checkpoint = saved(first)
    for _ in range(EVERY):
        first.advance()
    assert first.server_state.stage == stages
    assert not first.finished
    expected = first.server_state.rows

    # The last checkpoint that was written is that of round 3. The server is started again, too.
    later = connected(needed)
    assert later.federation.server.halves.rounds.round == 2 * EVERY - 1
    later.load_plain(torch.load(checkpoint, weights_only=False))
    for _ in range(EVERY):
        later.advance()
    assert torch.equal(later.server_state.rows, expected)

    # One round less would not have done.
    fewer = connected(needed - 1)
    with pytest.raises(UserError) as caught:
        fewer.advance()
    line = str(caught.value)
    assert f"keeps {needed - 1} rounds (--keep)" in line
    assert "--run.checkpoint_every" in line
    assert f"with --keep {needed}" in line
    assert "\n" not in line


@pytest.mark.parametrize("stages", [1, 2])
def test_no_fewer_rounds_would_do(
    stages: int, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = run_settings(stages)
    keep = rounds_to_keep(chosen) - 1
    monkeypatch.setattr("coterie.llm.split.halves.rounds_to_keep", lambda _: 0)
    flags = {"server": start(chosen, keep), "secret": str(tmp_path / "secret")}
    module = coordinator(run_settings(stages, **flags))
    for _ in range(EVERY):
        module.advance()
    checkpoint = saved(module)
    for _ in range(EVERY):
        module.advance()
    later = coordinator(run_settings(stages, **flags))
    later.load_plain(torch.load(checkpoint, weights_only=False))
    with pytest.raises(UserError, match="the server has the middle after rounds"):
        later.advance()


@pytest.mark.parametrize(("words", "keep"), [([], 5), (["--keep", "7"], 7)])
def test_a_server_of_these_settings_keeps_enough(
    words: list[str], keep: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = serve._parser().parse_args(["--layers", "1:2", "--port", "0", *words])
    experiment = SimpleNamespace(settings=run_settings(2), backbone=make("recformer", rank=None))
    server = serve._server(given, experiment, tmp_path)
    assert server._status().keep == keep
    serve.run(["--help"])
    assert "--run.checkpoint_every" in capsys.readouterr().out
