"""A kill of either side loses or doubles nothing: the run's checkpoint is the only one."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.llm.every_backbone import make
from tests.llm.organisations import organisations, settings

from coterie.core.federation.federation import Federation
from coterie.core.run.driver import FederatedRun
from coterie.llm.algorithm import PPLR
from coterie.llm.client import Organisation
from coterie.llm.halves import cut_backbone, make_middle, split_backbone
from coterie.llm.settings.backbone import ModelSettings, SplitSettings
from coterie.llm.settings.run import Settings
from coterie.llm.split.middle import Middle
from coterie.llm.split.remote import messages
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import make_secret

DONE, MORE = 3, 3
Start = Callable[[Settings], dict[str, str]]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[tuple[MiddleServer, Middle]]]:
    running: list[tuple[MiddleServer, Middle]] = []
    yield running
    for server, _ in running:
        server.stop(0)


@pytest.fixture
def start(
    tmp_path: Path, servers: list[tuple[MiddleServer, Middle]], monkeypatch: pytest.MonkeyPatch
) -> Start:
    """Start a server, a new one in the place of the one that runs; give the flags to reach it."""
    # Small messages: a part, of a whole layer, crosses in many pieces.
    monkeypatch.setattr(messages, "PIECE", 1 << 15)

    def started(chosen: Settings) -> dict[str, str]:
        for server, _ in servers:
            server.stop(0)
        parts = cut_backbone(make("recformer", rank=None).double(), 1, chosen)
        middle = make_middle(parts, chosen)
        secret = make_secret(tmp_path / "secret")
        server = MiddleServer(middle, parts.model, secret, max_bytes=1 << 16)
        server.start()
        servers.append((server, middle))
        return {"server": server.address, "secret": str(tmp_path / "secret")}

    return started


def run_settings(stages: int, **split: object) -> Settings:
    """All items are within the first ten: the first round is the best, and nothing better ends
    the waiting. With two stages, the first ends with round 3."""
    return settings(
        model=ModelSettings(name="recformer"),
        rounds=9,
        patience=2 if stages == 2 else 9,
        train={"lr": 0.02, "patience_frozen": 9, "stages": stages, "keep_optimizer": True},
        split=SplitSettings(k=1, **split),
    )


def coordinator(chosen: Settings) -> FederatedRun:
    model = make("recformer", rank=None).double()
    halves = split_backbone(model, chosen)
    client = Organisation(chosen, model, halves.channel)
    server = PPLR(chosen, 3, client.adapter.row(), halves)
    blocks = [organisations(sizes=(5, 3, 4), users=(2, 1, 1))]
    return FederatedRun(Federation(server=server, client=client, blocks=blocks, seed=5, rounds=18))


def advance(module: FederatedRun, rounds: int) -> None:
    for _ in range(rounds):
        module.advance()


def saved(module: FederatedRun) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(module.to_plain(), file)
    file.seek(0)
    return file


@pytest.fixture(params=[1, 2], ids=["one stage", "two stages"])
def straight(request: pytest.FixtureRequest) -> tuple[int, torch.Tensor]:
    """Stages, and the rows of a run in one process that nobody killed."""
    module = coordinator(run_settings(request.param))
    advance(module, DONE + MORE)
    assert module.server_state.stage == request.param
    return request.param, module.server_state.rows


def test_the_coordinator_is_killed(straight: tuple[int, torch.Tensor], start: Start) -> None:
    """Three rounds after its checkpoint; the server lives and has trained all of them."""
    stages, expected = straight
    chosen = run_settings(stages, **start(run_settings(stages)))
    first = coordinator(chosen)
    advance(first, DONE)
    checkpoint = saved(first)
    advance(first, MORE)
    assert torch.equal(first.server_state.rows, expected)
    later = coordinator(chosen)
    later.load_plain(torch.load(checkpoint, weights_only=False))
    advance(later, MORE)
    assert torch.equal(later.server_state.rows, expected)


def test_the_coordinator_is_killed_while_it_lends(
    straight: tuple[int, torch.Tensor], start: Start, servers: list[tuple[MiddleServer, Middle]]
) -> None:
    stages, expected = straight
    chosen = run_settings(stages, **start(run_settings(stages)))
    first = coordinator(chosen)
    advance(first, DONE)
    checkpoint = saved(first)
    link, sent = first.federation.server.halves.middle._link, []
    call = link.call

    def broken(message: object, *arguments: object, **others: object) -> object:
        sent.append(message)
        if len(sent) > 4:
            raise KeyboardInterrupt
        return call(message, *arguments, **others)

    link.call = broken
    with pytest.raises(KeyboardInterrupt):
        first.advance()
    later = coordinator(chosen)
    later.load_plain(torch.load(checkpoint, weights_only=False))
    advance(later, MORE)
    assert torch.equal(later.server_state.rows, expected)


def test_the_server_is_killed_between_two_rounds(
    straight: tuple[int, torch.Tensor], start: Start
) -> None:
    stages, expected = straight
    first = coordinator(run_settings(stages, **start(run_settings(stages))))
    advance(first, DONE)
    checkpoint = saved(first)
    later = coordinator(run_settings(stages, **start(run_settings(stages))))
    later.load_plain(torch.load(checkpoint, weights_only=False))
    advance(later, MORE)
    assert torch.equal(later.server_state.rows, expected)


def test_what_is_lent_is_in_the_ledger(start: Start) -> None:
    chosen = run_settings(1, **start(run_settings(1)))
    module = coordinator(chosen)
    module.advance()
    rows = {(row["step"], row["direction"]): row for row in module.ledger.rows()
            if row["field"] == "rows"}  # fmt: skip
    middle = module.server_state.rows.shape[1] - module.federation.server.held
    part = 8 * middle  # float64
    # Lent with Adam's two moments and given back for the update, lent alone to be validated.
    assert rows["lend", "up"]["bytes"] == pytest.approx(3 * 3 * part, rel=0.01)
    assert rows["lend", "down"]["bytes"] == pytest.approx(3 * 4 * part, rel=0.01)
    near = coordinator(run_settings(1))
    near.advance()
    assert not [row for row in near.ledger.rows() if row["step"] == "lend"]
