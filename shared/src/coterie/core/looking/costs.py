"""What a run sent and took, and what it would with more clients. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.looking.facts import RunFacts

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
"""Numbers of clients that are projected to."""


@dataclass(frozen=True)
class Cost:
    """Of a run so far.

    Attributes:
        rounds: done.
        up: bytes sent by all clients.
        down: bytes sent to all clients.
        seconds: wall time of the rounds.
        steps: gradient steps of all clients; NaN where they were not counted.
        clients: whose update was accepted, mean over rounds; NaN where it was not counted.
    """

    rounds: int
    up: float
    down: float
    seconds: float
    steps: float
    clients: float

    @property
    def up_each(self) -> float:
        """Bytes that a client which takes part in a round sends in it, mean."""
        return self.up / (self.rounds * self.clients) if self.rounds else math.nan

    @property
    def down_each(self) -> float:
        """Bytes that it is sent, mean."""
        return self.down / (self.rounds * self.clients) if self.rounds else math.nan


def cost(run: RunFacts) -> Cost:
    """What a run took so far."""
    clients = [value for value in run.history.get("fed/clients", []) if value == value]
    return Cost(
        rounds=run.rounds,
        up=run.last("cost/up_bytes_total"),
        down=run.last("cost/down_bytes_total"),
        seconds=run.last("cost/seconds_total"),
        steps=run.last("cost/local_steps_total"),
        clients=math.fsum(clients) / len(clients) if any(clients) else math.nan,
    )


@dataclass(frozen=True)
class Projected:
    """What a round would take with more clients.

    Attributes:
        clients: taking part in it.
        up: bytes that they send in a round.
        down: bytes that they are sent.
        run: both, over all rounds of the run.
    """

    clients: int
    up: float
    down: float
    run: float


def projection(found: Cost) -> list[Projected]:
    """Project the bytes of a round, which grow with the clients that take part in it."""
    if not (math.isfinite(found.up_each) and math.isfinite(found.down_each)):
        return []
    each = found.up_each + found.down_each
    return [
        Projected(n, n * found.up_each, n * found.down_each, n * each * found.rounds) for n in SIZES
    ]


@dataclass(frozen=True)
class Sent:
    """A field that crosses the boundary: as it is declared, and as it was counted.

    Attributes:
        step: of the client half.
        direction: "up" from a client, or "down" to it.
        field: of the message.
        messages: how many crossed; 0 for none.
        bytes: of all of them.
        declared: what the code says of the field; empty for what crosses beside messages.
        parties: who sent it to whom.
    """

    step: str
    direction: str
    field: str
    messages: int
    bytes: int
    declared: Mapping[str, str]
    parties: str


_PASSED_ON = ("passed on to other clients", "passed on from other clients")


def crossed(
    ledger: Sequence[Mapping[str, Any]], declared: Sequence[Mapping[str, str]]
) -> list[Sent]:
    """Join what is declared to cross with what was counted, field by field.

    Args:
        ledger: rows of ``ledger.json``; parts of a field, as ``weights.head.bias``, count for it.
        declared: rows of `coterie.core.privacy.releases.protocol_table`.

    Returns:
        What leaves clients first, the largest first; a field that never crossed has 0 bytes.
    """
    counted: dict[tuple[str, str, str], list[int]] = {}
    for row in ledger:
        field, _, part = str(row["field"]).partition(".")
        key = (row["step"], row["direction"], field)
        entry = counted.setdefault(key, [0, 0])
        if part.isdecimal():  # a message for, or of, each of several clients
            entry[0] += row["messages"]
        else:
            entry[0] = max(entry[0], row["messages"])
        entry[1] += row["bytes"]
    said = {(row["step"], row["direction"], row["field"].split(".")[0]): row for row in declared}
    found = []
    for key in dict.fromkeys((*counted, *said)):
        step, way, field = key
        about = said.get(key, {})
        parties = "clients to server" if way == "up" else "server to clients"
        if _is_passed_on(about):
            parties = "clients to clients, by the server"
        messages, size = counted.get(key, [0, 0])
        found.append(Sent(step, way, field, messages, size, about, parties))
    return sorted(found, key=lambda one: (one.direction != "up", -one.bytes, one.step, one.field))


def is_linear(declared: Sequence[Mapping[str, str]]) -> bool:
    """Whether bytes grow with the number of clients; not where clients send to each other."""
    return not any(map(_is_passed_on, declared))


def _is_passed_on(row: Mapping[str, str]) -> bool:
    return any(words in row.get("content", "") for words in _PASSED_ON)
