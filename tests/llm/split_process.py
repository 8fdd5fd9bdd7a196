"""A server of the middle in a process of its own, as the tests use it."""

import multiprocessing
import re
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.llm import split_server

from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors import saved
from coterie.llm.split.channel import Channel
from coterie.llm.split.part import Kept, Part
from coterie.llm.split.remote.channel import GrpcLayers, GrpcSessions
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.tokens import admin_token, client_token, read_secret


@cache
def processes() -> ForkServerContext:
    """Where servers are forked from: one process with the imports, which take seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.llm.split_server"])
    return context


def fork(target: Callable[..., None], *words: Any) -> tuple[BaseProcess, Connection]:
    """Start a process that says something to us; what comes of it, an EOFError once it is gone."""
    ours, theirs = processes().Pipe(duplex=False)
    process = processes().Process(target=target, args=(*words, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


class Server:
    """A server process; its parent has done nothing but import."""

    def __init__(self, state: Path, *extra: str, n_layers: int = 4, k: int = 1) -> None:
        words = [str(n_layers), str(k), str(state), *extra]
        self.process, self._lines = fork(split_server.main, words)
        self.address, self.state = self.line(), state
        assert re.fullmatch(r"127.0.0.1:\d+", self.address)
        self.secret = read_secret(state / "secret")

    def line(self) -> str:
        """What the server says next."""
        return self._lines.recv()

    def channel(self, model: str, wire: str | None = None, **others: object) -> Channel:
        link = Link(self.address, **others)
        sessions = GrpcSessions(link, model, lambda client: client_token(self.secret, client))
        return Channel(sessions, wire)

    def layers(self, model: str, clients: int = 2) -> GrpcLayers:
        """The coordinator's side."""
        token = admin_token(self.secret)
        return GrpcLayers(Link(self.address), model, token, clients, optimizer=True)

    def part(self, kept: Kept) -> Part:
        """What the server keeps of a round, by its file."""
        plain = saved.load(self.state / "kept" / kept.run / f"{kept.number}.pt")
        return Part(plain["rows"], RowState(**plain["optimizer"]))

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
