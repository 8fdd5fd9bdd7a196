"""Rows of many clients cross in parts; a round is committed with the last of them, or not."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.llm.split_process import Server
from tests.llm.split_server import TRAINING
from tests.llm.tiny_split import TinyLlama
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.wire.codec import ProtocolError
from coterie.llm.split.context import Context
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle
from coterie.llm.split.remote.channel import GrpcRounds
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.messages import Commit, Done, Mixed
from coterie.llm.split.remote.partial_rows import PartialRows, parts
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import admin_token

SECRET = "s" * 64
TOKEN = admin_token(SECRET)
HIDDEN = torch.linspace(-1, 1, 2 * 5 * 32).reshape(2, 5, 32)
LEARN = Context(gradient=True, input_gradient=True)


@pytest.fixture(params=[64 << 10, 8 << 10], ids=["rows fit", "a row is too long"])
def small(request: pytest.FixtureRequest) -> Iterator[tuple[Middle, str, int]]:
    """A server that takes small messages: fewer than ten rows, or not even one."""
    middle = Middle(cut(TinyLlama(4), 1).stack, TRAINING)
    server = MiddleServer(middle, "m", SECRET, max_bytes=request.param)
    server.start()
    yield middle, server.address, request.param
    server.stop(0)


class Spy(Link):
    """Notes the messages, and breaks after some of them, as a coordinator that is killed."""

    def __init__(self, address: str, last: float = math.inf) -> None:
        super().__init__(address)
        self.sent: list[object] = []
        self.last = last

    def call(self, message, *arguments, **others):
        if len(self.sent) >= self.last:
            raise KeyboardInterrupt
        self.sent.append(message)
        return super().call(message, *arguments, **others)


def train(middle: Middle, ids: range) -> None:
    for client in ids:
        session = middle.open(client, training=True)
        _, call = middle.forward(session, HIDDEN * (client + 1), LEARN)
        middle.backward(session, call, HIDDEN.sin())
        middle.step(session)
        middle.close(session)


def numbers(n: int, size: int) -> Tensor:
    return torch.arange(n * size, dtype=torch.float32).reshape(n, size).sin()


@given(st.integers(0, 9), st.integers(1, 30), st.integers(1, 700))
def test_parts_cover_everything_once(n: int, size: int, max_bytes: int) -> None:
    count = torch.zeros(n, size)
    begun: dict[int, int] = {}
    for clients, columns in parts(n, size, max_bytes):
        part = count[clients, columns]
        part += 1
        assert part.numel() == 1 or part.numel() * 16 <= max_bytes
        assert part.shape == (clients.stop - clients.start, columns.stop - columns.start)
        for client in range(clients.start, clients.stop):
            assert begun.get(client, 0) == columns.start
            begun[client] = columns.stop
    assert bool((count == 1).all())


def test_a_llama_s_rows_do_not_fit_into_one_message() -> None:
    """LoRA of LLaMA-7B, 15.7 MB a client; 256 MiB are the most."""
    cuts = list(parts(100, 3_932_160, 256 << 20))
    assert len(cuts) == 25
    assert all(4 * 4 * (columns.stop - columns.start) < 128 << 20 for _, columns in cuts)


def test_rows_larger_than_a_message_cross_both_ways(small: tuple[Middle, str, int]) -> None:
    middle, address, most = small
    ids = range(40)
    link = Spy(address)
    rounds = GrpcRounds(link, TOKEN)
    rounds.begin(0)
    train(middle, ids)
    expected = middle.trained(ids)
    assert expected.numel() * 4 > most
    rows = rounds.trained(ids)
    assert torch.equal(rows, expected)
    mixed = rows.flip(0)
    rounds.commit(0, mixed, ids)
    assert middle.round == rounds.round == 0
    for client in ids:
        assert torch.equal(middle.row(client), mixed[client])
    assert sum(isinstance(message, Mixed) for message in link.sent) > 3


def test_what_has_no_rows_crosses(small: tuple[Middle, str, int]) -> None:
    middle, address, _ = small
    rounds = GrpcRounds(Link(address), TOKEN)
    rounds.begin(0)
    assert rounds.trained([]).shape == (0, middle.size)
    rounds.commit(0, torch.empty(0, middle.size), [])
    assert middle.round == 0


def test_a_coordinator_killed_between_parts(small: tuple[Middle, str, int]) -> None:
    """At every message: nothing is committed before the last; the next one begins anew."""
    middle, address, _ = small
    ids, rows = [0, 7, 3, *range(10, 20)], numbers(13, middle.size)
    rounds = GrpcRounds(Link(address), TOKEN)
    rounds.begin(0)
    rounds.commit(0, rows, ids)
    spy = Spy(address)
    rounds.begin(1)
    GrpcRounds(spy, TOKEN).commit(1, rows + 1, ids)
    for last in range(len(spy.sent)):
        rounds.begin(1)  # takes round 1 back
        with pytest.raises(KeyboardInterrupt):
            GrpcRounds(Spy(address, last), TOKEN).commit(1, rows + 2 + last, ids)
        assert middle.round == 0
        assert torch.equal(torch.stack([middle.row(client) for client in ids]), rows)
        rounds.begin(1)
        with pytest.raises(UserError, match="have come: send the others first"):
            Link(address).call(Commit(1, torch.tensor(ids)), Done, token=TOKEN)
        assert middle.round == 0
        rounds.commit(1, rows - last, ids)
        assert torch.equal(torch.stack([middle.row(client) for client in ids]), rows - last)


def test_another_try_without_a_new_begin(small: tuple[Middle, str, int]) -> None:
    middle, address, _ = small
    rounds, ids = GrpcRounds(Link(address), TOKEN), list(range(10))
    rows = numbers(10, middle.size)
    rounds.begin(0)
    with pytest.raises(KeyboardInterrupt):
        GrpcRounds(Spy(address, 3), TOKEN).commit(0, rows * 2, ids)
    with pytest.raises(UserError, match="not finite"):
        rounds.commit(0, rows / 0, ids)
    assert middle.round == -1
    rounds.commit(0, rows[2:], ids[2:])  # two fewer: what came of these is forgotten
    assert torch.equal(middle.row(5), rows[5])
    assert torch.equal(middle.row(0), middle.row(99))


def test_a_part_of_another_round(small: tuple[Middle, str, int]) -> None:
    middle, address, _ = small
    link, ids = Link(address), torch.tensor([4])
    part = Mixed(0, torch.ones(1, middle.size), ids, 0)

    def refused(message: object, match: str) -> None:
        with pytest.raises(UserError, match=match):
            link.call(message, Done, token=TOKEN)

    refused(part, "round 0 has not begun on the server, which has None")
    GrpcRounds(link, TOKEN).begin(0)
    refused(Mixed(1, part.rows, ids, 0), "round 1 has not begun on the server, which has 0")
    link.call(part, Done, token=TOKEN)
    link.call(part, Done, token=TOKEN)  # from 0 again: the same
    refused(Commit(1, ids), "round 1 has not begun")
    refused(Commit(0, torch.tensor([4, 4])), "a client is given twice")
    refused(Commit(0, ids.int()), "no list of int64")
    with pytest.raises(UserError, match="not that of the coordinator"):
        link.call(part, Done, token="")
    GrpcRounds(link, TOKEN).begin(0)
    refused(Commit(0, ids), r"of client 4's row 0 of \d+ numbers have come")
    assert middle.round == -1


def test_the_parts_of_a_row_come_in_order() -> None:
    rows = numbers(2, 6)
    held = PartialRows(6)
    held.put(rows[:, :2], [5, 9], 0)
    for start, match in [(3, "goes on at 2, not at 3"), (1, "goes on at 2, not at 1")]:
        with pytest.raises(UserError, match=match):
            held.put(rows[:, start : start + 2], [5, 9], start)
    with pytest.raises(UserError, match="client 9's row goes on at 2"):
        held.put(rows[1:, 4:], [9], 4)
    held.put(rows[:1, 2:], [5], 2)
    with pytest.raises(UserError, match="client 9's row 2 of 6"):
        held.take([5, 9])
    with pytest.raises(UserError, match="goes on at 6, not at 2"):
        held.put(rows[:1, 2:], [5], 2)  # repeated
    with pytest.raises(UserError, match="goes on at 6, not at 2"):
        held.put(rows[:, 2:], [9, 5], 2)  # nothing of it is kept
    held.put(-rows[1:], [9], 0)  # all of it again
    assert torch.equal(held.take([9, 5]), torch.stack([-rows[1], rows[0]]))
    with pytest.raises(UserError, match="row 0 of 6"):
        held.take([9])
    assert held.take([]).shape == (0, 6)


@pytest.mark.parametrize(
    ("rows", "ids", "start", "error"),
    [
        (torch.ones(6), [1], 0, ProtocolError),
        (torch.ones(2, 6), [1], 0, ProtocolError),
        (torch.ones(1, 6).long(), [1], 0, ProtocolError),
        (torch.ones(2, 6), [1, 1], 0, UserError),
        (torch.ones(1, 7), [1], 0, UserError),
        (torch.ones(1, 0), [1], 0, UserError),
        (torch.ones(1, 3), [1], -3, UserError),
        (torch.ones(1, 3), [1], 1 << 62, UserError),
    ],
)
def test_parts_that_are_none(
    rows: Tensor, ids: list[int], start: int, error: type[Exception]
) -> None:
    held = PartialRows(6)
    with pytest.raises(error) as caught:
        held.put(rows, ids, start)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="row 0 of 6"):
        held.take([1])


def test_a_server_killed_between_parts(tmp_path: Path) -> None:
    """What came of a round that did not end is not there when the server is started again."""
    server = Server(tmp_path)
    try:
        rounds = server.rounds()
        rows = numbers(300, rounds.size)
        assert rows.numel() * 4 > 1 << 20  # more than the server takes in a message
        rounds.begin(0)
        rounds.commit(0, rows, range(300))
        rounds.begin(1)
        link = Spy(server.address, 3)
        with pytest.raises(KeyboardInterrupt):
            GrpcRounds(link, admin_token(server.secret)).commit(1, rows + 1, range(300))
        assert isinstance(link.sent[-1], Mixed)
        server.kill()
        server = Server(tmp_path)
        rounds = server.rounds()
        assert rounds.round == 0
        rounds.begin(1)
        with pytest.raises(UserError, match="row 0 of"):
            server.rounds()._link.call(
                Commit(1, torch.arange(2)), Done, token=admin_token(server.secret)
            )
        rounds.commit(1, rows + 2, range(300))
        assert rounds.round == 1
    finally:
        server.kill()
