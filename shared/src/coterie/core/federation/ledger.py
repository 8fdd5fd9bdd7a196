"""The ledger: every byte that crosses the boundary, counted from shapes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.core.protocol.messages import relayed
from coterie.core.tensors import tree
from coterie.core.tensors.stacked import Stacked

SERVER, CLIENTS = "server", "clients"


@dataclass(frozen=True)
class Crossing:
    """What crossed between two parties in a round, of one field of a step's messages.

    Attributes:
        block: of the round.
        round: in the block.
        step: of the client half.
        field: of the message.
        sender: "server", "clients", or a client's number where each is an organisation of its own.
        receiver: the same.
        relay: "server" where it passes on what other clients sent it; else empty.
    """

    block: int
    round: int
    step: str
    field: str
    sender: str
    receiver: str
    relay: str = ""


def _counts() -> dict[Any, list[int]]:
    return defaultdict(lambda: [0, 0])


@dataclass
class Ledger:
    """Bytes by step, direction and field since the start of the run, and by parties in a round.

    Attributes:
        totals: ``(step, direction, field) -> [messages, bytes]``, direction "up" or "down".
        of_round: ``Crossing -> [messages, bytes]`` of the newest round.
        when: its coordinates: block, round in it.
    """

    totals: dict[tuple[str, str, str], list[int]] = field(default_factory=_counts)
    of_round: dict[Crossing, list[int]] = field(default_factory=_counts)
    when: tuple[int, int] = (0, 0)

    def begin_round(self, block: int, number: int) -> None:
        """Forget the parties of the round before."""
        self.of_round.clear()
        self.when = (block, number)

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
        """
        passed_on = relayed(type(message))
        for path, leaf in tree.values(message):
            size = tree.nbytes(leaf) * (1 if one_each else n_clients)
            relay = path.split(".")[0] in passed_on
            self._add(step, "down", path, n_clients, size, client, relay)

    def up(self, step: str, message: Any, n_clients: int, *, client: str = CLIENTS) -> None:
        """Count an upload, stacked over ``n_clients`` or of one."""
        self.up_sizes(step, field_sizes(message), n_clients, client=client)

    def up_sizes(
        self, step: str, sizes: dict[str, int], n_clients: int, *, client: str = CLIENTS
    ) -> None:
        """Count an upload by the bytes of its fields."""
        for name, size in sizes.items():
            self._add(step, "up", name, n_clients, size, client)

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
        self._add(step, direction, field, messages, size, CLIENTS)

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
            asdict(crossing) | {"messages": count, "bytes": size}
            for crossing, (count, size) in self.of_round.items()
        ]

    def _add(
        self,
        step: str,
        way: str,
        name: str,
        count: int,
        size: int,
        client: str,
        relay: bool = False,
    ) -> None:
        sender, receiver = (client, SERVER) if way == "up" else (SERVER, client)
        if relay:
            sender = CLIENTS
        crossing = Crossing(*self.when, step, name, sender, receiver, SERVER if relay else "")
        for entry in (self.totals[step, way, name], self.of_round[crossing]):
            entry[0] += count
            entry[1] += size


def field_sizes(message: Any) -> dict[str, int]:
    """Bytes of each field of an upload, of all clients together; what is None has none."""
    return {
        name: sum(tree.nbytes(leaf) for _, leaf in tree.values(value))
        for name, value in tree.children(message)
        if value is not None
    }


def stacked_bytes(message: Any) -> Tensor:
    """Bytes of each client's part of a stacked upload, ``(C,)`` int64."""
    sizes = []
    for _, leaf in tree.values(message):
        if isinstance(leaf, Stacked):
            sizes.append(leaf.nbytes())
        elif leaf.shape[0]:
            sizes.append(torch.full((leaf.shape[0],), leaf[0].numel() * leaf.element_size()))
    return torch.stack(sizes).sum(0)
