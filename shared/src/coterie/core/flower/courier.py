"""Nodes that Flower reaches: parcels travel as messages of its app, each answered by one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from coterie.core.engines.nodes import Nodes
from coterie.core.errors import UserError
from coterie.core.flower.client_app import BODY, CONTROL, FOLDER, packed, unpacked

logger = logging.getLogger(__name__)
LONGEST = 12 * 3600.0
"""Seconds that Flower keeps a message for a node, where there is no deadline."""
_LOOK, _AGAIN = 0.2, 1.0  # seconds between two looks for replies; and before asking again


class Lost(UserError):
    """Flower carries nothing of a run any more; another start goes on with it."""


class FlowerNodes(Nodes):
    """Clients behind nodes of Flower, each folder of clients behind the node with one key.

    Args:
        grid: of the ServerApp.
        keys: name of a clients' folder -> public key of the node that has it, as PEM.
        run: names the run; private state is of one run.
        options: of `coterie.core.engines.nodes.Nodes`.
    """

    def __init__(self, grid: Grid, keys: Mapping[str, bytes], run: str, **options: Any) -> None:
        self.courier = Courier(grid)
        nodes = [FlowerNode(name, key, self.courier) for name, key in keys.items()]
        super().__init__(nodes, run, **options)

    def close(self) -> None:
        """Let the nodes go; Flower may not let go of a request to a SuperLink that is gone."""
        for member in self.members:
            member.node.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.courier.close()


class FlowerNode:
    """The clients of one folder, wherever the node with its key is.

    Attributes:
        name: of the folder.
        key: the node's public key, as PEM. What a node says that it has is not asked.
    """

    def __init__(self, name: str, key: bytes, courier: Courier) -> None:
        self.name, self.key, self._courier = name, key, courier
        self._asks: set[_Way] = set()

    def ask(self, parcel: bytes, seconds: float | None) -> bytes | None:
        """Bring a parcel and wait for its reply, again where Flower says that it got lost.

        Raises:
            Lost: Flower carries nothing of this run any more.
        """
        until = time.monotonic() + (LONGEST if seconds is None else seconds)
        way = _Way(self, parcel)
        self._asks.add(way)
        try:
            while not way.given_up and (left := until - time.monotonic()) > 0:
                reply = self._courier.carry(way, left)
                if reply is not None:
                    return reply
                way.wait(min(_AGAIN, max(until - time.monotonic(), 0.0)))
            return None
        finally:
            self._asks.discard(way)

    def give_up(self) -> None:
        """Wait for nothing any more; what comes later is not looked at."""
        for way in list(self._asks):
            way.give_up()

    def close(self) -> None:
        """As `give_up`: the node goes on by itself."""
        self.give_up()


@dataclass(eq=False)
class _Way:
    """One parcel, on its way to a node and back."""

    node: FlowerNode
    parcel: bytes
    given_up: bool = False
    came: Message | None = None
    _changed: threading.Event = field(default_factory=threading.Event)

    def give_up(self) -> None:
        self.given_up = True
        self._changed.set()

    def bring(self, message: Message) -> None:
        self.came = message
        self._changed.set()

    def wait(self, seconds: float) -> None:
        """Wait for a message, or until nobody waits for it."""
        self._changed.wait(seconds)
        if not self.given_up:
            self._changed.clear()


class Courier:
    """Carries parcels for all nodes; one thread looks for all replies."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._talk = grid, threading.Lock()  # Flower has one connection
        self._under_way: dict[str, _Way] = {}
        self._some = threading.Event()
        self._found: tuple[float, dict[bytes, int]] = (-_AGAIN, {})
        self._closed, self._failure = False, ""
        threading.Thread(target=self._collect, name="replies", daemon=True).start()

    def carry(self, way: _Way, seconds: float) -> bytes | None:
        """Bring a parcel to its node, if that is there, and its reply.

        Raises:
            Lost: Flower carries nothing of this run any more.
        """
        number = self._push(way, seconds)
        if number is None:
            return None
        try:
            way.came = None
            self._under_way[number] = way
            self._some.set()
            way.wait(seconds)
            self._check()
            return self._read(way)
        finally:
            self._under_way.pop(number, None)

    def close(self) -> None:
        """Look for nothing any more."""
        self._closed = True
        self._some.set()

    def _push(self, way: _Way, seconds: float) -> str | None:
        """Hand a message to Flower; its number, or None where the node is not there."""
        until = time.monotonic() + seconds
        with self._talk:
            self._check()
            left = until - time.monotonic()
            if way.given_up or left <= 0:
                return None
            try:
                node = self._online().get(way.node.key)
                if node is None:
                    return None
                content = RecordDict(
                    {CONTROL: ConfigRecord({FOLDER: way.node.name}), BODY: packed(way.parcel)}
                )
                message = Message(content, node, "train", ttl=max(min(left, LONGEST), 1.0))
                (number,) = self._grid.push_messages([message])
            except Exception as error:
                self._fail(error)
                raise self._refusal() from error
        return number or None

    def _read(self, way: _Way) -> bytes | None:
        message = way.came
        if message is None or way.given_up:
            return None
        if message.has_error():
            logger.info("%s: Flower says %s", way.node.name, message.error)
            return None
        with suppress(ValueError):
            return unpacked(message)
        return b""  # which is no reply, and is refused as such

    def _collect(self) -> None:
        """Look for the replies to all that is under way."""
        while not self._closed and not self._failure:
            self._some.wait()
            self._some.clear()
            while self._under_way and not self._closed:
                try:
                    with self._talk:
                        found = list(self._grid.pull_messages(list(self._under_way)))
                except Exception as error:
                    self._fail(error)
                    return
                for message in found:
                    way = self._under_way.pop(message.metadata.reply_to_message_id, None)
                    if way is not None:
                        way.bring(message)
                time.sleep(_LOOK)

    def _online(self) -> dict[bytes, int]:
        """Public key -> number, of the nodes that are there."""
        when, found = self._found
        if time.monotonic() - when > _AGAIN:
            nodes = self._grid.get_nodes()
            found = {bytes(node.public_key): node.node_id for node in nodes}
            self._found = (time.monotonic(), found)
        return found

    def _fail(self, error: Exception) -> None:
        self._failure = type(error).__name__
        logger.warning("Flower: %s", error)
        for way in list(self._under_way.values()):
            way.give_up()

    def _check(self) -> None:
        if self._failure:
            raise self._refusal()

    def _refusal(self) -> Lost:
        return Lost(
            f"Flower's SuperLink carries nothing of this run any more ({self._failure}): start the "
            "run again, with resume=true"
        )
