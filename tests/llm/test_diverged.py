"""A client whose numbers are not finite is dropped from a split run as from a whole one."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.llm import split_server
from tests.llm.split_process import fork
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tensors import saved
from coterie.llm.experiment import Experiment
from coterie.llm.split.kept_parts import OwnLayers

pytestmark = pytest.mark.long

CLIENTS = 4
RUN = ["--rounds", "3", "--model.width", "16", "--model.layers", "3", "--lora.dropout", "0"]
RUN += ["--pretrain.steps", "5", "--engine.dtype", "float64", "--data.valid_users", "3"]
RUN += ["--data.clients", str(CLIENTS), "--data.public", "0.6", "--data.max_history", "4"]
RUN += ["--data.shots", "40", "--train.batch_size", "5"]  # two or three batches a client
RUN += ["--model.trained", "lora", "--train.keep_optimizer", "true", "--logger.wandb", "off"]
Turns = set[tuple[int, int]]  # clients and the rounds in which they diverge
ONCE: Turns = {(1, 1)}
TWICE: Turns = ONCE | {(client, 0) for client in range(1, CLIENTS)}
"""All but one in the first round, and one of them again."""
ALL: Turns = {(client, 0) for client in range(CLIENTS)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def start(folder: Path, *flags: str) -> FederatedRun:
    settings = configure(find_paper("pplr"), [*RUN, "--run.out", str(folder), *flags]).settings
    return FederatedRun(Experiment(settings).federation())


def diverge(module: FederatedRun, turns: Turns, where: str) -> None:
    """Break the second batch of these turns in the client's lower or upper layers, or in those
    of the server: at once after its step, or at the end of the session."""
    client, seen = module.federation.client, {"turn": (-1, -1), "batch": 0}
    update, loss = client.update, client.backbone.loss

    def broken_update(down, mine, data, key):
        seen.update(turn=(data.id, down.round), batch=0)
        return update(down, mine, data, key)

    def broken_loss(batch):
        seen["batch"] += 1
        if where in ("lower", "upper") and seen["turn"] in turns and seen["batch"] == 2:
            with torch.no_grad():
                client.adapter.parameters[0 if where == "lower" else -1].fill_(torch.nan)
        return loss(batch)

    client.update, client.backbone.loss = broken_update, broken_loss
    if where in ("step", "close"):
        _diverge_middle(module.federation.server.halves.layers._middle, turns, where, seen)


def _diverge_middle(middle, turns: Turns, where: str, seen: dict) -> None:
    original = getattr(middle, where)

    def spoil(session: str) -> None:
        one = middle._sessions.get(session)
        if one.training and seen["turn"] in turns and seen["batch"] >= 2:
            one.row = (one.row.detach() * torch.nan).requires_grad_()

    def step(session: str) -> None:
        original(session)
        spoil(session)

    def close(session: str, *, keep: bool = True) -> None:
        spoil(session)
        original(session, keep=keep)

    setattr(middle, where, step if where == "step" else close)


def middle_rows(module: FederatedRun) -> Tensor:
    """The other half's rows, also where another process keeps them."""
    kept, settings = module.server_state.middle, module.federation.server.settings
    if kept.part is not None:
        return kept.part.rows
    folder = settings.run.folder
    if kept.number:
        files = folder / "pplr" / "server" / "kept" / kept.run
        return saved.load(files / f"{kept.number}.pt")["rows"]
    return start(folder, "--split.k", "1").server_state.middle.part.rows


def play(module: FederatedRun) -> list[Tensor]:
    """The rows after every round, layer by layer from the lowest."""
    found = []
    while not module.finished:
        module.advance()
        rows, server = module.server_state.rows, module.federation.server
        if server.halves is not None:  # of three layers the client has the first and the last
            lower, upper = rows.chunk(2, dim=1)
            middle = middle_rows(module)
            rows = torch.cat([lower, middle, upper], dim=1)
        found.append(rows)
    return found


Whole = tuple[list[Tensor], FederatedRun]


@pytest.fixture(scope="module")
def whole(folder: Path) -> Callable[..., Whole]:
    known: dict[tuple, Whole] = {}

    def run(turns: Turns, *flags: str) -> Whole:
        name = (frozenset(turns), flags)
        if name not in known:
            module = start(folder, *flags)
            diverge(module, turns, "lower")
            known[name] = play(module), module
        return known[name]

    return run


def same(split: FederatedRun, rows: list[Tensor], whole: Whole) -> None:
    expected, module = whole
    for one, other in zip(rows, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert split.results == pytest.approx(module.results, abs=1e-12, nan_ok=True)


def nothing_left(module: FederatedRun) -> None:
    layers = module.federation.server.halves.layers
    assert not isinstance(layers, OwnLayers) or not len(layers._middle._sessions)
    assert all(parameter.grad is None for parameter in module.federation.client.adapter.parameters)


@pytest.mark.parametrize("where", ["lower", "upper", "step", "close"])
def test_a_client_that_diverges_is_dropped_for_the_round(folder, whole, where) -> None:
    expected, _ = whole(ONCE)
    split = start(folder, "--split.k", "1")
    diverge(split, ONCE, where)
    rows = play(split)
    same(split, rows, whole(ONCE))
    nothing_left(split)
    first, second, third = rows
    assert torch.equal(first[1], second[1])
    assert bool((second[1] != third[1]).any())
    assert bool((first[0] != second[0]).any())
    with_it, _ = whole(set())
    assert torch.equal(with_it[0], expected[0])
    assert float((with_it[1] - expected[1])[0].abs().max()) > 1e-6  # it would have mattered


@pytest.mark.parametrize("split", [True, False])
def test_where_all_clients_diverge_the_run_ends(folder, split: bool) -> None:
    run = start(folder, *(["--split.k", "1"] if split else []))
    diverge(run, ALL, "upper")
    with pytest.raises(UserError, match=r"^nobody's answer to 'update' counts, .*\(4 of 4\)"):
        play(run)


def test_all_clients_but_one_diverge(folder, whole) -> None:
    split = start(folder, "--split.k", "1")
    diverge(split, TWICE, "upper")
    rows = play(split)
    same(split, rows, whole(TWICE))
    nothing_left(split)
    assert bool((rows[0][0] != rows[1][0]).any())


@pytest.mark.parametrize("batch", ["5", "100000"])
def test_a_learning_rate_with_which_all_diverge(folder, batch: str) -> None:
    """With one batch a round what is trained is finite still, but larger than can be."""
    flags = ["--train.lr", "1e100", "--train.batch_size", batch]
    for run in (start(folder, "--split.k", "1", *flags), start(folder, *flags)):
        with pytest.raises(UserError, match=r"^nobody's answer to 'update' counts, .*\(4 of 4\)"):
            play(run)
        assert run.round == 0


@pytest.mark.parametrize(("method", "turns"), [("fedavg", set()), ("fedavg", ONCE), ("pplr", ONCE)])
def test_clients_who_were_not_drawn(folder, whole, method: str, turns: Turns) -> None:
    flags = ["--method", method, "--participation", "0.5"]
    split = start(folder, "--split.k", "1", *flags)
    diverge(split, turns, "upper")
    rows = play(split)
    same(split, rows, whole(turns, *flags))
    nothing_left(split)
    behind = len(turns)
    differ = [len(unique) for unique in (torch.unique(matrix, dim=0) for matrix in rows)]
    assert differ[0] == (1 if method == "fedavg" else 3)
    assert differ[1] == (1 + behind if method == "fedavg" else differ[1])


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[list[str]]:
    """A server process of the run; the flags of its clients."""
    words = ["--layers", "1:2", "--port", "0", *RUN, "--out", str(folder)]
    process, said = fork(split_server.command, words)
    try:
        with os.fdopen(os.dup(said.fileno())) as lines:
            address = re.fullmatch(r"serving layers 1:2 at (.*)\n", lines.readline())[1]
        secret = str(folder / "pplr" / "server" / "secret")
        yield ["--split.k", "1", "--split.server", address, "--split.secret", secret]
    finally:
        process.terminate()
        process.join(30)


@pytest.mark.parametrize("where", ["lower", "upper"])
def test_a_server_in_a_second_process(folder, whole, server, where) -> None:
    split = start(folder, *server)
    diverge(split, TWICE, where)
    same(split, play(split), whole(TWICE))
