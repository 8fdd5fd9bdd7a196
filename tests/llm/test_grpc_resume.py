"""A kill of either side loses or doubles nothing: each has the other's last checkpoint."""

import io
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.llm.every_backbone import make
from tests.llm.organisations import organisations, settings

from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import RunSettings
from coterie.core.tensors.saved import load
from coterie.core.wire.codec import Header, encode
from coterie.llm.algorithm import PPLR
from coterie.llm.backbone_settings import ModelSettings, SplitSettings
from coterie.llm.backbones.base import Backbone
from coterie.llm.client import Organisation
from coterie.llm.halves import cut_backbone, make_middle, split_backbone
from coterie.llm.mixing import Mixing
from coterie.llm.settings import Settings
from coterie.llm.split.middle import Middle
from coterie.llm.split.remote import messages
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import make_secret

pytestmark = pytest.mark.long

DONE, MORE = 2, 2
Start = Callable[[Settings], dict[str, str]]
Straight = tuple[int, list[torch.Tensor]]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[tuple[MiddleServer, Middle]]]:
    running: list[tuple[MiddleServer, Middle]] = []
    yield running
    for server, _ in running:
        server.stop(0)


@pytest.fixture
def start(tmp_path: Path, servers: list[tuple[MiddleServer, Middle]]) -> Start:
    """Start a server, a new one in the place of the one that runs; give the flags to reach it."""

    def started(chosen: Settings) -> dict[str, str]:
        for server, _ in servers:
            server.stop(0)
        parts = cut_backbone(backbone(chosen), 1, chosen)
        middle = make_middle(parts, chosen)
        secret = make_secret(tmp_path / "secret")
        # A part, of a whole layer, would not fit into a message.
        limit = 1 << (16 if chosen.train.stages == 2 else 12)
        assert limit < 3 * middle.adapter.row().numel() * 8
        server = MiddleServer(middle, parts.model, secret, tmp_path / "kept", max_bytes=limit)
        server.start()
        servers.append((server, middle))
        return {"server": server.address, "secret": str(tmp_path / "secret")}

    return started


def run_settings(stages: int, every: int = DONE, **split: object) -> Settings:
    """All items are within the first ten: the first round is the best, and nothing better ends
    the waiting. With two stages, the first ends with round 2: a RecFormer, others have one."""
    return settings(
        model=ModelSettings(name="recformer" if stages == 2 else "tiny-item"),
        rounds=9,
        patience=1 if stages == 2 else 9,
        train={"lr": 0.02, "patience_frozen": 9, "stages": stages, "keep_optimizer": True},
        split=SplitSettings(k=1, **split),
        run=RunSettings(checkpoint_every=every),
    )


def backbone(chosen: Settings) -> Backbone:
    return make(chosen.model.name, rank=None).double()


def coordinator(chosen: Settings) -> FederatedRun:
    model = backbone(chosen)
    halves = split_backbone(model, chosen)
    client = Organisation(chosen, model, halves.channel)
    server = PPLR(chosen, 3, client.adapter.row(), halves)
    blocks = [organisations(sizes=(4, 3, 4), users=(2, 1, 1))]
    return FederatedRun(Federation(server=server, client=client, blocks=blocks, seed=5, rounds=18))


def advance(module: FederatedRun, rounds: int) -> None:
    for _ in range(rounds):
        module.advance()


def saved(module: FederatedRun) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(module.to_plain(), file)
    file.seek(0)
    return file


def whole(module: FederatedRun, kept: Path | None = None) -> torch.Tensor:
    """The rows of both halves, after the last round."""
    state = module.server_state
    middle = state.middle
    if kept is None:
        return torch.cat([state.rows, middle.part.rows], dim=1)
    found = load(kept / middle.run / f"{middle.number}.pt")
    return torch.cat([state.rows, found["rows"]], dim=1)


def said(module: FederatedRun) -> list[dict[str, Any]]:
    """What the ledger has of coordinator and server, both ways in one."""
    rows = [row for row in module.ledger.rows() if row["step"] == "mix"]
    down = [row for row in rows if row["direction"] == "down"]
    up = {row["field"]: row["bytes"] for row in rows if row["direction"] == "up"}
    return [row | {"bytes": row["bytes"] + up[row["field"]]} for row in down]


@pytest.fixture(scope="module", params=[1, 2], ids=["one stage", "two stages"])
def straight(request: pytest.FixtureRequest) -> Straight:
    """Stages, and the rows after each round of a run in one process that nobody killed."""
    module, rows = coordinator(run_settings(request.param)), []
    for _ in range(DONE + MORE):
        module.advance()
        rows.append(whole(module))
    assert module.server_state.stage == request.param
    return request.param, rows


def test_the_coordinator_is_killed(straight: Straight, start: Start, tmp_path: Path) -> None:
    """Two rounds after its checkpoint; the server lives and has trained all of them."""
    stages, expected = straight
    chosen = run_settings(stages, **start(run_settings(stages)))
    first = coordinator(chosen)
    advance(first, DONE)
    checkpoint = saved(first)
    advance(first, MORE)
    assert torch.equal(whole(first, tmp_path / "kept"), expected[-1])
    later = coordinator(chosen)
    later.load_plain(torch.load(checkpoint, weights_only=False))
    advance(later, MORE)
    assert torch.equal(whole(later, tmp_path / "kept"), expected[-1])


def test_the_coordinator_is_killed_while_it_speaks(
    straight: Straight, start: Start, tmp_path: Path
) -> None:
    """After each of its messages of a round, the one that mixes among them."""
    stages, expected = straight
    chosen = run_settings(stages, **start(run_settings(stages)))
    first = coordinator(chosen)
    advance(first, DONE)
    checkpoint = torch.load(saved(first), weights_only=False)
    for last in range(3):
        broken_after(first, last)
        with pytest.raises(KeyboardInterrupt):
            advance(first, 9)
        later = coordinator(chosen)
        later.load_plain(deepcopy(checkpoint))
        advance(later, 2)
        assert torch.equal(whole(later, tmp_path / "kept"), expected[DONE + 1])
        first = coordinator(chosen)
        first.load_plain(deepcopy(checkpoint))


def broken_after(module: FederatedRun, last: int) -> None:
    """Kill the coordinator after its message of that number."""
    link, said = module.federation.server.halves.layers._link, []
    call = link.call

    def broken(message: object, *arguments: object, **others: object) -> object:
        answer = call(message, *arguments, **others)
        if isinstance(message, (messages.Use, messages.Gram, messages.Mix)):
            said.append(message)
            if len(said) > last:
                raise KeyboardInterrupt
        return answer

    # Not the clients' link, which is the same object: their calls pass.
    monkey = Link.__new__(Link)
    monkey.__dict__ |= link.__dict__ | {"call": broken}
    module.federation.server.halves.layers._link = monkey


def test_the_server_is_killed_between_two_rounds(
    straight: Straight, start: Start, tmp_path: Path
) -> None:
    stages, expected = straight
    first = coordinator(run_settings(stages, **start(run_settings(stages))))
    advance(first, DONE)
    checkpoint = saved(first)
    later = coordinator(run_settings(stages, **start(run_settings(stages))))
    later.load_plain(torch.load(checkpoint, weights_only=False))
    advance(later, MORE)
    assert torch.equal(whole(later, tmp_path / "kept"), expected[-1])


@pytest.mark.parametrize("every", [1, 3])
def test_the_server_forgets_what_no_checkpoint_names(
    start: Start, tmp_path: Path, every: int
) -> None:
    """After each round of a run: what its checkpoints may name is there, hardly more."""
    chosen = run_settings(1, every, **start(run_settings(1)))
    module = coordinator(chosen)
    for number in range(1, 7):
        module.advance()
        state = module.server_state
        there = {int(path.stem) for path in (tmp_path / "kept" / state.middle.run).glob("*.pt")}
        # A checkpoint is written after this round at the earliest.
        before = (number - 1) // every * every
        assert {state.middle.number, state.best_middle.number} - {0} <= there
        assert set(range(max(before, 1), number + 1)) <= there
        assert len(there) <= every + 2
    gone = replace(state.middle, number=2)
    if every == 1:
        with pytest.raises(UserError, match="has nothing of round 2 of this run"):
            module.federation.server.halves.layers.use(gone)


def test_what_is_said_is_little_and_in_the_ledger(start: Start) -> None:
    """Beside what clients send, and without adapters in either direction."""
    chosen = run_settings(1, **start(run_settings(1)))
    module = coordinator(chosen)
    module.advance()
    module.advance()
    link, sizes = module.federation.server.halves.layers._link, []
    call = link.call

    def counted(message: object, answer: type, **others: object) -> object:
        count = others.pop("count", None)

        def both(sent: int, got: int) -> None:
            sizes.append(sent + got)
            count(sent, got)

        return call(message, answer, count=both if count else None, **others)

    link.call = counted
    before = {row["field"]: row["bytes"] for row in said(module)}
    module.advance()
    after = {row["field"]: row["bytes"] for row in said(module)}
    assert after.keys() == {"version", "gram", "weights"}
    assert after["version"] == before["version"]  # it knows what it has mixed itself
    assert sum(after.values()) - sum(before.values()) == sum(sizes)
    assert 0 < sum(sizes) < 2000
    near = coordinator(run_settings(1))
    near.advance()
    assert not said(near)


def test_five_clients_say_less_than_a_kilobyte() -> None:
    five = torch.arange(5)
    how = Mixing(five, five, torch.full((5, 5), 0.2).double())
    gram = torch.ones(5, 5).double()
    sizes = [
        len(encode(message, Header(type(message).__name__, ())))
        for message in (
            messages.Gram(five, True),
            messages.Products(gram),
            messages.Mix(how, 99, 98, 97),
            messages.Done(),
        )
    ]
    assert max(sum(sizes[0::2]), sum(sizes[1::2])) < 1000  # a round, each way
