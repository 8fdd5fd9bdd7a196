"""Parts larger than a message cross in pieces; one that is not whole is not there."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.llm.split_server import TRAINING
from tests.llm.tiny_split import TinyLlama, lend_start

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.wire.codec import Header, encode
from coterie.llm.split.context import Context
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle
from coterie.llm.split.part import Part, given_back, lend
from coterie.llm.split.remote import link, messages
from coterie.llm.split.remote.channel import GrpcMiddle
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.messages import LEND
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import admin_token

SECRET = "s" * 64
TOKEN = admin_token(SECRET)
HIDDEN = torch.linspace(-1, 1, 2 * 5 * 32).reshape(2, 5, 32)
LEARN = Context(gradient=True, input_gradient=True)


@pytest.fixture(params=[64 << 10, 2 << 10], ids=["a part fits", "a part is too long"])
def small(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Middle, str]]:
    """A server that takes small messages."""
    monkeypatch.setattr(messages, "PIECE", request.param)
    middle = Middle(cut(TinyLlama(4), 1).stack, TRAINING)
    server = MiddleServer(middle, "m", SECRET, max_bytes=2 * request.param)
    server.start()
    yield middle, server.address
    server.stop(0)


class Spy:
    """Counts the pieces that are sent, and breaks after some, as a coordinator that is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: float = math.inf) -> None:
        self.parts: list[int] = []
        self.sent, self.last = 0, last
        monkeypatch.setattr(link, "pieces", self.pieces)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        self.parts.append(0)
        for piece in messages.pieces(data):
            if self.sent >= self.last:
                raise RuntimeError
            self.sent += 1
            self.parts[-1] += 1
            yield piece


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


def test_parts_cross_both_ways(small: tuple[Middle, str], monkeypatch: pytest.MonkeyPatch) -> None:
    middle, address = small
    spy = Spy(monkeypatch)
    remote = GrpcMiddle(Link(address), "m", TOKEN)
    part = lend_start(remote, middle.adapter.row(), 40, optimizer=True)
    assert len(spy.parts) == 40
    assert (min(spy.parts) > 5) == (messages.PIECE < 64 << 10)
    train(middle, range(40))
    back = given_back(remote, range(40))
    assert same(back, given_back(middle, range(40)))
    assert not torch.equal(back.rows, part.rows)
    counted = {way: size for way, _, _, size in remote.traffic.drain()}
    numbers = sum(leaf.numel() * leaf.element_size() for _, leaf in tree.tensors(part))
    for way in ("up", "down"):
        assert numbers < counted[way] < 1.5 * numbers  # names and shapes are written, too


def test_a_coordinator_killed_between_pieces(
    small: tuple[Middle, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every piece: what is not whole is not lent, and the next one begins anew."""
    middle, address = small
    part = lend_start(middle, middle.adapter.row(), 3, optimizer=True)
    spy = Spy(monkeypatch)
    lend(GrpcMiddle(Link(address), "m", TOKEN), range(3), part)
    one = spy.sent // 3
    assert spy.parts == [one] * 3
    for last in range(spy.sent):
        Spy(monkeypatch, last)
        with pytest.raises(UserError):
            lend(GrpcMiddle(Link(address), "m", TOKEN), range(3), part)
        assert sorted(middle._lent) == list(range(last // one))
        Spy(monkeypatch)
        lend(GrpcMiddle(Link(address), "m", TOKEN), range(3), part)
        train(middle, range(3))
        expected = Middle(cut(TinyLlama(4), 1).stack, TRAINING)
        lend(expected, range(3), part)
        train(expected, range(3))
        assert same(given_back(middle, range(3)), given_back(expected, range(3)))


def test_what_is_asked_of_a_server_that_has_it_not(small: tuple[Middle, str]) -> None:
    middle, address = small
    way = Link(address)
    remote, stranger = GrpcMiddle(way, "m", TOKEN), GrpcMiddle(way, "m", "")
    with pytest.raises(UserError, match="client 0 has not finished"):
        remote.trained(0)
    part = lend_start(remote, middle.adapter.row(), 2)
    train(middle, range(1))
    remote.trained(0)
    for refused in (stranger.clear, lambda: stranger.lend(0, part), lambda: stranger.trained(0)):
        with pytest.raises(UserError, match="not that of the coordinator"):
            refused()
    assert same(remote.trained(0), middle.trained(0))
    nobody = encode(part, Header("lend", ()))
    for data in (b"abc", nobody):
        with pytest.raises(UserError, match="refused"):
            way.stream(LEND, data, token=TOKEN)
    with pytest.raises(UserError, match="a part of more than the"):
        way.stream(LEND, bytes(64 * middle.size + (1 << 16) + 1), token=TOKEN)
    assert sorted(middle._lent) == [0, 1]


@given(st.binary(max_size=60), st.integers(1, 70))
def test_pieces_make_the_whole(data: bytes, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "PIECE", most)
        found = list(messages.pieces(data))
    assert b"".join(found) == data
    assert all(len(piece) == most for piece in found[:-1])
    assert len(found[-1]) <= most
    assert bool(found[-1]) == bool(data)
