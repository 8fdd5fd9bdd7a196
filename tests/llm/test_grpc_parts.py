"""Parts larger than a message cross in pieces; one that is not whole is not there."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.llm.split_server import TRAINING
from tests.llm.tiny_split import TinyLlama, lend_start
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.wire.codec import ProtocolError
from coterie.llm.split.context import Context
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle
from coterie.llm.split.part import Part, given_back, lend
from coterie.llm.split.remote.channel import GrpcMiddle
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.messages import AskTrained, Done, Lend, Piece
from coterie.llm.split.remote.pieces import Pieces
from coterie.llm.split.remote.pieces import cut as piece_of
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import admin_token

SECRET = "s" * 64
TOKEN = admin_token(SECRET)
HIDDEN = torch.linspace(-1, 1, 2 * 5 * 32).reshape(2, 5, 32)
LEARN = Context(gradient=True, input_gradient=True)


@pytest.fixture(params=[64 << 10, 4 << 10], ids=["a part fits", "a part is too long"])
def small(request: pytest.FixtureRequest) -> Iterator[tuple[Middle, str]]:
    """A server that takes small messages."""
    middle = Middle(cut(TinyLlama(4), 1).stack, TRAINING)
    server = MiddleServer(middle, "m", SECRET, max_bytes=request.param)
    server.start()
    yield middle, server.address
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


def same(first: Part, second: Part) -> bool:
    pairs = list(zip(tree.tensors(first), tree.tensors(second), strict=True))
    return all(torch.equal(one, other) for (_, one), (_, other) in pairs)


def test_parts_cross_both_ways(small: tuple[Middle, str]) -> None:
    middle, address = small
    link = Spy(address)
    remote = GrpcMiddle(link, "m", TOKEN)
    part = lend_start(remote, middle.adapter.row(), 40, optimizer=True)
    assert sum(isinstance(message, Lend) for message in link.sent) >= 40
    train(middle, range(40))
    back = given_back(remote, range(40))
    assert same(back, given_back(middle, range(40)))
    assert not torch.equal(back.rows, part.rows)
    counted = {way: size for way, _, _, size in remote.traffic.drain()}
    numbers = sum(leaf.numel() * leaf.element_size() for _, leaf in tree.tensors(part))
    for way in ("up", "down"):
        assert numbers < counted[way] < 1.5 * numbers  # names and shapes are written, too


def test_a_coordinator_killed_between_pieces(small: tuple[Middle, str]) -> None:
    """At every message: what is not whole is not lent, and the next one begins anew."""
    middle, address = small
    part = lend_start(middle, middle.adapter.row(), 3, optimizer=True)
    spy = Spy(address)
    lend(GrpcMiddle(spy, "m", TOKEN), range(3), part)
    for last in range(1, len(spy.sent)):
        with pytest.raises(KeyboardInterrupt):
            lend(GrpcMiddle(Spy(address, last), "m", TOKEN), range(3), part)
        whole = sum(
            message.start + len(message.piece) == message.total for message in spy.sent[1:last]
        )
        assert sorted(middle._lent) == list(range(whole))
        lend(GrpcMiddle(Link(address), "m", TOKEN), range(3), part)
        train(middle, range(3))
        expected = Middle(cut(TinyLlama(4), 1).stack, TRAINING)
        lend(expected, range(3), part)
        train(expected, range(3))
        assert same(given_back(middle, range(3)), given_back(expected, range(3)))


def test_what_is_asked_of_a_server_that_has_it_not(small: tuple[Middle, str]) -> None:
    middle, address = small
    link = Link(address)
    remote = GrpcMiddle(link, "m", TOKEN)
    with pytest.raises(UserError, match="client 0 has not finished"):
        remote.trained(0)
    lend_start(remote, middle.adapter.row(), 2)
    train(middle, range(1))
    remote.trained(0)
    for client, start in ((0, 1 << 40), (0, -1), (1, 5)):
        with pytest.raises(UserError, match=f"of client {client}'s part: ask from 0"):
            link.call(AskTrained(client, start), Piece, token=TOKEN)
    for message in (AskTrained(0, 0), Lend(0, 0, piece_of(b"abc", 0, 3), 3)):
        with pytest.raises(UserError, match="not that of the coordinator"):
            link.call(message, Piece, token="")
    with pytest.raises(UserError, match="refused"):
        link.call(Lend(0, 0, piece_of(b"abc", 0, 3), 3), Done, token=TOKEN)  # no part
    assert same(remote.trained(0), middle.trained(0))


@given(st.binary(min_size=1, max_size=60), st.integers(1, 70))
def test_pieces_make_the_whole(data: bytes, most: int) -> None:
    held = Pieces(60)
    starts = range(0, len(data), most)
    found = [held.put(3, start, piece_of(data, start, most), len(data)) for start in starts]
    assert found[:-1] == [None] * (len(starts) - 1)
    assert found[-1] == data


def test_the_pieces_of_a_part_come_in_order() -> None:
    held, data = Pieces(6), b"abcdef"

    def put(client: int, start: int, end: int, total: int = 6) -> bytes | None:
        return held.put(client, start, piece_of(data, start, end - start), total)

    assert put(5, 0, 2) is None
    for start in (1, 3):
        with pytest.raises(UserError, match=f"client 5's part goes on at 2, not at {start}"):
            put(5, start, start + 1)
    with pytest.raises(UserError, match="client 9's part goes on at 0, not at 2"):
        put(9, 2, 4)
    assert put(5, 2, 4) is None
    assert put(5, 0, 1) is None  # all of it again
    assert put(5, 1, 6) == data
    with pytest.raises(UserError, match="goes on at 0"):
        put(5, 1, 6)


@pytest.mark.parametrize(
    ("piece", "start", "total", "error"),
    [
        (torch.ones(3), 0, 3, ProtocolError),
        (torch.ones(1, 3, dtype=torch.uint8), 0, 3, ProtocolError),
        (torch.ones(7, dtype=torch.uint8), 0, 7, UserError),
        (torch.ones(3, dtype=torch.uint8), 0, 2, UserError),
        (torch.ones(3, dtype=torch.uint8), 0, 0, UserError),
        (torch.ones(3, dtype=torch.uint8), -3, 3, UserError),
        (torch.ones(3, dtype=torch.uint8), 1 << 62, 6, UserError),
    ],
)
def test_pieces_that_are_none(
    piece: Tensor, start: int, total: int, error: type[Exception]
) -> None:
    held = Pieces(6)
    with pytest.raises(error) as caught:
        held.put(1, start, piece, total)
    assert "\n" not in str(caught.value)
    assert held.put(1, 0, torch.zeros(1, dtype=torch.uint8), 1) == b"\0"
