"""Flower's grid without Flower's processes: messages go straight to ClientApps in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from coterie.core.engines.worker import Service
from coterie.core.flower.certificates import public_key, write_key
from coterie.core.flower.client_app import app, packed, unpacked
from coterie.core.flower.node_folder import SOCKET, client_folders
from coterie.core.flower.resident import listen

Answer = Callable[[Message], Message | None]


@dataclass
class Info:
    """What Flower tells of a node."""

    node_id: int
    public_key: bytes


@dataclass
class FakeGrid:
    """Nodes by number, each with a key and what it answers; None for no answer.

    Attributes:
        offline: numbers of nodes that are not there.
        pushed: all messages, in their order.
        broken: raised by every call, once it is set.
    """

    nodes: dict[int, tuple[bytes, Answer]]
    offline: set[int] = field(default_factory=set)
    pushed: list[Message] = field(default_factory=list)
    broken: Exception | None = None
    _replies: dict[str, Message] = field(default_factory=dict)
    _calls: list[str] = field(default_factory=list)

    def get_nodes(self) -> list[Info]:
        self._check("get_nodes")
        here = {number: key for number, (key, _) in self.nodes.items()}
        return [Info(n, key) for n, key in here.items() if n not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        self._check("push_messages")
        names: list[str | None] = []
        for message in messages:
            name = f"message-{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = name
            self.pushed.append(message)
            names.append(name if message.metadata.dst_node_id in self.nodes else None)
            threading.Thread(target=self._answer, args=(message, name), daemon=True).start()
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        self._check("pull_messages")
        return [self._replies.pop(name) for name in list(names) if name in self._replies]

    def _answer(self, message: Message, name: str) -> None:
        number = message.metadata.dst_node_id
        if number not in self.nodes:
            return
        try:
            reply = self.nodes[number][1](message)
        except Exception as error:  # as Flower tells it
            reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        if reply is not None:
            self._replies[name] = reply

    def _check(self, call: str) -> None:
        assert threading.current_thread().name  # called from any thread, one at a time
        if self.broken is not None:
            raise self.broken
        self._calls.append(call)


def by_app(socket: Path) -> Answer:
    """The ClientApp, as Flower calls it."""

    def answer(message: Message) -> Message:
        context = Context(1, 2, {SOCKET: str(socket)}, RecordDict(), {})
        return app(message, context)

    return answer


def by_service(folders: Iterable[Path], change: Callable[[bytes], bytes] = bytes) -> Answer:
    """Without a socket, with a reply that is what ``change`` makes of the true one."""
    services = {path.name: Service(path) for path in folders}

    def answer(message: Message) -> Message:
        name = str(message.content["control"]["folder"])
        reply = services[name].answer(unpacked(message)) if name in services else b""
        return Message(RecordDict({"body": packed(change(reply))}), reply_to=message)

    return answer


def key_of(folder: Path) -> bytes:
    """A new key, as Flower knows it."""
    folder.mkdir(parents=True, exist_ok=True)
    return public_key(write_key(folder / "key").read_text().strip(), "a test")


def grid_of(root: Path, answers: Mapping[str, Answer]) -> tuple[FakeGrid, dict[str, bytes]]:
    """A grid with a node for each folder of clients, and their keys by that name."""
    keys = {name: key_of(root / name) for name in answers}
    nodes = {n: (keys[name], answers[name]) for n, name in enumerate(answers, start=1)}
    return FakeGrid(nodes), keys


@contextmanager
def listening(node: Path, socket: Path) -> Iterator[None]:
    """The process of a node's clients, as a thread of this one."""
    services = {path.name: Service(path) for path in client_folders(node)}
    threading.Thread(target=listen, args=(node, services, socket), daemon=True).start()
    until = time.monotonic() + 30.0
    while not socket.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    yield


def quick(monkeypatch: Any) -> None:
    """Be the process of an app, and look often."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr("coterie.core.flower.courier._LOOK", 0.005)
    monkeypatch.setattr("coterie.core.flower.courier._AGAIN", 0.02)
