"""A server of the middle in a process of its own, as the tests use it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from coterie.llm.split.channel import Channel
from coterie.llm.split.remote.channel import GrpcMiddle, GrpcSessions
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
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self.address = self.line()
        assert re.fullmatch(r"127.0.0.1:\d+", self.address), self.process.stderr.read()
        self.secret = read_secret(state / "secret")

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def channel(self, model: str, wire: str | None = None, **others: object) -> Channel:
        link = Link(self.address, **others)
        sessions = GrpcSessions(link, model, lambda client: client_token(self.secret, client))
        return Channel(sessions, wire)

    def middle(self, model: str, **others: object) -> GrpcMiddle:
        """The coordinator's side."""
        return GrpcMiddle(Link(self.address, **others), model, admin_token(self.secret))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
