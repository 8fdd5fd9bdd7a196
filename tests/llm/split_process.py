"""A server of the middle in a process of its own, as the tests use it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors import saved
from coterie.llm.split.channel import Channel
from coterie.llm.split.part import Kept, Part
from coterie.llm.split.remote.channel import GrpcLayers, GrpcSessions
from coterie.llm.split.remote.link import Link
from coterie.llm.split.remote.tokens import admin_token, client_token, read_secret

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A server process."""

    def __init__(self, state: Path, *extra: str, n_layers: int = 4, k: int = 1) -> None:
        command = [sys.executable, "-m", "tests.llm.split_server", str(n_layers), str(k)]
        self.process = subprocess.Popen(
            [*command, str(state), *extra],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        self.address, self.state = self.line(), state
        assert re.fullmatch(r"127.0.0.1:\d+", self.address), self.process.stderr.read()
        self.secret = read_secret(state / "secret")

    def line(self) -> str:
        return self.process.stdout.readline().strip()

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
        self.process.wait()
