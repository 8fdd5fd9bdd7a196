"""The ledger: every byte that crosses the boundary, counted from shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coterie.core.federation.transcript import Crossing, Transcript
from coterie.core.protocol.messages import relayed
from coterie.core.tensors import tree

SERVER, CLIENTS = "server", "clients"


def _counts() -> dict[Any, list[int]]:
    return defaultdict(lambda: [0, 0])


@dataclass
class Ledger:
    """Bytes by step, direction and field since the start of the run, and by parties in a round.

    Attributes:
        totals: ``(step, direction, field) -> [messages, bytes]``, direction "up" or "down".
        of_round: ``Crossing -> [messages, bytes]`` of the newest round.
        when: its coordinates: block, round in it.
        transcript: is told of every crossing; None for nobody.
    """

    totals: dict[tuple[str, str, str], list[int]] = field(default_factory=_counts)
    of_round: dict[Crossing, list[int]] = field(default_factory=_counts)
    when: tuple[int, int] = (0, 0)
    transcript: Transcript | None = None

    def begin_round(self, block: int, number: int) -> None:
        """Forget the parties of the round before, but for round 0, which opens a block."""
        if self.when != (block, 0) or number != 1:
            self.of_round.clear()
        self.when = (block, number)

    def end_ask(self) -> None:
        """Let the transcript have what crossed in an ask."""
        if self.transcript is not None:
            self.transcript.end_ask()

    def down(
        self,
        step: str,
        message: Any,
        n_clients: int,
        *,
        client: str = CLIENTS,
        one_each: bool = False,
    ) -> None:
        """Count what clients received.

        Args:
            step: in which.
            message: the same for each of them, or stacked over them.
            n_clients: how many received it.
            client: who, where it is one organisation.
            one_each: whether it is stacked.

        Raises:
            TypeError: a dict that is passed on has other keys than clients' numbers.
        """
        for name, peer, part in _received(message):
            size = _nbytes(part) * (1 if one_each else n_clients)
            relay = SERVER if peer else ""
            crossing = Crossing(*self.when, step, "down", name, peer or SERVER, client, relay)
            self._add(crossing, n_clients, size)
            if self.transcript is not None:
                self.transcript.enter(
                    crossing, n_clients, size, part, stacked=one_each, common=not one_each
                )

    def up(
        self,
        step: str,
        message: Any,
        n_clients: int,
        *,
        client: str = CLIENTS,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Count an upload.

        Args:
            step: in which.
            message: stacked over ``n_clients``, or of one.
            n_clients: how many sent it.
            client: who, where it is one organisation.
            sizes: `field_sizes` of the uploads where they were folded before they came; the message
                is then what they were folded into.
        """
        passed_on, parts = relayed(type(message)), dict(_sent(message))
        stacked = client == CLIENTS and sizes is None
        if sizes is None:
            sizes = {path: _nbytes(part) for path, part in parts.items()}
        for path, size in sizes.items():
            name, _, peer = path.partition(".")
            way = (peer or CLIENTS, SERVER) if name in passed_on else (SERVER, "")
            crossing = Crossing(*self.when, step, "up", name, client, *way)
            self._add(crossing, n_clients, size)
            if self.transcript is not None:
                self.transcript.enter(crossing, n_clients, size, parts.get(path), stacked=stacked)

    def crossed(self, step: str, direction: str, field: str, messages: int, size: int) -> None:
        """Count what crossed beside messages, such as activations of a split model.

        Args:
            step: in which.
            direction: "up" from the client or "down" to it.
            field: what it is.
            messages: how many.
            size: bytes of all of them.

        Example:
            >>> ledger = Ledger()
            >>> ledger.crossed("update", "up", "activations", 2, 4096)
            >>> ledger.crossed("update", "up", "activations", 1, 4)
            >>> ledger.bytes("up"), ledger.rows()[0]["messages"]
            (4100, 3)
        """
        parties = (CLIENTS, SERVER) if direction == "up" else (SERVER, CLIENTS)
        crossing = Crossing(*self.when, step, direction, field, *parties)
        self._add(crossing, messages, size)
        if self.transcript is not None:
            self.transcript.enter(crossing, messages, size)
            self.end_ask()

    def bytes(self, direction: str) -> int:
        """Bytes in one direction so far."""
        return sum(b for (_, d, _), (_, b) in self.totals.items() if d == direction)

    def rows(self) -> list[dict[str, Any]]:
        """The table of the ledger, as plain rows."""
        return [
            {"step": step, "direction": way, "field": name, "messages": count, "bytes": size}
            for (step, way, name), (count, size) in sorted(self.totals.items())
        ]

    def load(self, rows: list[dict[str, Any]]) -> None:
        """Restore what `rows` gave."""
        self.totals.clear()
        for row in rows:
            key = (row["step"], row["direction"], row["field"])
            self.totals[key] = [row["messages"], row["bytes"]]

    def parties(self) -> list[dict[str, Any]]:
        """What crossed in the newest round, between whom, as plain rows."""
        return [
            crossing._asdict() | {"messages": count, "bytes": size}
            for crossing, (count, size) in self.of_round.items()
        ]

    def _add(self, crossing: Crossing, count: int, size: int) -> None:
        total = self.totals[crossing.step, crossing.direction, crossing.field]
        for entry in (total, self.of_round[crossing]):
            entry[0] += count
            entry[1] += size


def field_sizes(message: Any) -> dict[str, int]:
    """Bytes of each field of an upload, of all clients together; what is None has none.

    A dict that is passed on has an entry for each receiver, as ``residuals.5``.
    """
    return {path: _nbytes(part) for path, part in _sent(message)}


def _sent(message: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an upload, each with its field, and the receiver of what is passed on."""
    passed_on = relayed(type(message))
    for name, value in tree.children(message):
        if name in passed_on and isinstance(value, dict):
            yield from ((f"{name}.{peer}", part) for peer, part in value.items())
        elif value is not None:
            yield name, value


def _received(message: Any) -> Iterator[tuple[str, str, Any]]:
    """The parts of a downward message: field, sender of what is passed on, and value."""
    passed_on = relayed(type(message))
    for name, value in tree.children(message):
        if name in passed_on and isinstance(value, dict):
            if not all(peer.isdecimal() for peer in value):
                raise TypeError(
                    f"{type(message).__name__}.{name} is passed on, so its keys must be clients' "
                    f"numbers, not {', '.join(value)}"
                )
            yield from ((name, peer, part) for peer, part in value.items())
        else:
            sender = CLIENTS if name in passed_on else ""
            yield from ((path, sender, leaf) for path, leaf in tree.values({name: value}))


def _nbytes(part: Any) -> int:
    if isinstance(part, Tensor):  # most are, of each of one's peers
        return tree.nbytes(part)
    return sum(tree.nbytes(leaf) for _, leaf in tree.values(part))
