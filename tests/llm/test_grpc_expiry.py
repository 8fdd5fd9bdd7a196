"""What a client who is gone has left on the server is freed, though nobody calls."""

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from tests.llm.tiny_split import TinyLlama, use_start

from coterie.llm.split.channel import Channel, Context
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle, Training
from coterie.llm.split.remote.channel import GrpcSessions
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import client_token
from coterie.llm.split.sessions import Limits

SECRET = "s" * 64
HIDDEN = torch.linspace(-1, 1, 2 * 5 * 32).reshape(2, 5, 32)
LEARN = Context(gradient=True, input_gradient=True)


class Clock:
    """Stands still, so that a slow machine expires nothing too early."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def soon(condition: Callable[[], bool]) -> bool:
    """Whether it comes true in half a minute, which is long for what takes milliseconds."""
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def test_an_idle_server_frees_what_a_client_left(tmp_path: Path) -> None:
    clock = Clock()
    middle = Middle(
        cut(TinyLlama(4), 1).stack, Training(lr=0.1), limits=Limits(ttl=0.1), clock=clock
    )
    server = MiddleServer(middle, "m", SECRET, tmp_path)
    looks: list[float] = []
    expire = middle.expire
    middle.expire = lambda: (looks.append(clock.now), expire())  # type: ignore[method-assign]
    server.start()
    use_start(middle)
    channel = Channel(
        GrpcSessions(Link(server.address), "m", lambda client: client_token(SECRET, client))
    )
    channel.open(0, training=True)
    _, call = channel.forward(HIDDEN, LEARN)
    session = middle._sessions._open[channel._current()]
    graph = weakref.ref(session.pending[call].out)
    del session
    since = len(looks)
    assert soon(lambda: len(looks) > since + 3)  # it looks, and nothing is old
    assert len(middle._sessions) == 1
    assert graph() is not None
    clock.now = 0.2
    assert soon(lambda: not len(middle._sessions))
    assert soon(lambda: graph() is None)
    server.stop(0)
    assert soon(lambda: "expiry" not in {thread.name for thread in threading.enumerate()})


def test_a_call_without_its_gradient_expires_in_a_session_that_lives() -> None:
    clock = Clock()
    middle = Middle(
        cut(TinyLlama(4), 1).stack, Training(lr=0.1), limits=Limits(ttl=1.0), clock=clock
    )
    use_start(middle)
    name = middle.open(0, training=True).session
    _, old = middle.forward(name, HIDDEN, LEARN)
    clock.now = 0.7
    _, young = middle.forward(name, HIDDEN, LEARN)
    clock.now = 1.4
    middle.expire()
    assert list(middle._sessions._open[name].pending) == [young] != [old]
