"""What crosses the boundary: counted byte by byte, and written down with its hash."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.federation.parties import Parties
from coterie.core.protocol.messages import relayed
from coterie.core.tensors import tree
from coterie.core.wire.codec import tensors_of


class Crossing(NamedTuple):
    """What crossed between two parties in a round, of one field of a step's messages.

    Attributes:
        block: of the round.
        round: in the block.
        step: of the client half.
        direction: "up" from a client to the server, or "down" to a client.
        field: of the message.
        sender: "server", "clients", or a client's number where each is an organisation of its own.
        receiver: the same.
        relay: "server" for what clients send to clients: it receives what goes up, and passes it
            on down; else empty.
    """

    block: int
    round: int
    step: str
    direction: str
    field: str
    sender: str
    receiver: str
    relay: str = ""


@dataclass
class _Line:
    """What is known of a crossing so far."""

    rows: int | None
    messages: int = 0
    values: int = 0
    bytes: int = 0
    hash: Any = field(default_factory=hashlib.sha256)


class Transcript:
    """What the ledger counts, ask by ask, as JSON lines.

    A line has what a `Crossing` has, and

    - ``messages``, ``bytes``: as in the ledger, of which the lines are the summands;
    - ``values``: numbers in all its tensors, as they travel;
    - ``rows``: length of the first axis of one message, behind the axis of stacked clients; null
      for what is not one tensor with axes;
    - ``hash``: SHA-256 of the bytes of its tensors as they travel (`tensors_of`): row-major, little
      endian, end to end, without names and shapes. Null where they hold no number: plain values
      are not hashed, as the ledger does not count them. Of stacked clients it is of all their
      messages, chunk after chunk; of uploads that were folded before they came, of the sums.

    Args:
        write: takes the lines of an ask, each with its end.
        tell: says how long what was written is.
        truncate: cuts it back to a length.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        tell: Callable[[], int] = int,
        truncate: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._write, self.tell, self._truncate = write, tell, truncate
        self._open: dict[Crossing, _Line] = {}

    def cut(self, length: int) -> None:
        """Forget what came after a length, as its round is tried again."""
        self._open.clear()
        self._truncate(length)

    def enter(
        self,
        crossing: Crossing,
        messages: int,
        size: int,
        value: Any = None,
        *,
        stacked: bool = False,
        common: bool = False,
    ) -> None:
        """Note what crosses; in an ask it may come in several parts.

        Args:
            crossing: between whom.
            messages: how many.
            size: bytes of all of them.
            value: tensors, of all messages.
            stacked: whether it is stacked over clients.
            common: whether it is the same for all of them, and in every part.
        """
        line = self._open.get(crossing)
        is_new = line is None
        if line is None:
            line = self._open[crossing] = _Line(_rows(value, stacked))
        tensors = list(tensors_of(value).values())
        line.messages += messages
        line.bytes += size
        line.values += sum(one.numel() for one in tensors) * (messages if common else 1)
        if is_new or not common:
            for tensor in tensors:
                line.hash.update(_bytes(tensor))

    def end_ask(self) -> None:
        """Write the lines of an ask."""
        if self._open:
            lines, self._open = self._open, {}
            self._write("".join(_text(crossing, line) for crossing, line in lines.items()))


def read_transcript(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a transcript."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def altered(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """List what the server passed on that is not, bit for bit, what its sender had sent before.

    Args:
        lines: of a transcript, in order.

    Example:
        >>> up = {"direction": "up", "sender": "3", "relay": "server", "hash": "ab"}
        >>> down = up | {"direction": "down", "receiver": "5"}
        >>> altered([up, down]), altered([up, down | {"hash": "cd"}])[0]["receiver"]
        ([], '5')
    """
    sent: set[tuple[str, str | None]] = set()
    found = []
    for line in lines:
        if line["direction"] == "up":
            sent |= {(line["sender"], line["hash"]), ("clients", line["hash"])}
        elif line["relay"] and (line["sender"], line["hash"]) not in sent:
            found.append(line)
    return found


def _rows(value: Any, stacked: bool) -> int | None:
    axes = value.shape[stacked:] if isinstance(value, Tensor) else ()
    return axes[0] if axes else None


def _bytes(tensor: Tensor) -> Any:
    """The bytes of a tensor, as a buffer."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _text(crossing: Crossing, line: _Line) -> str:
    counted = {"rows": line.rows, "values": line.values, "messages": line.messages}
    digest = line.hash.hexdigest() if line.values else None
    about = crossing._asdict() | counted | {"bytes": line.bytes, "hash": digest}
    return json.dumps(about, separators=(",", ":")) + "\n"


# The ledger: every byte that crosses the boundary, counted from shapes.

SERVER, CLIENTS = "server", "clients"


def _counts() -> dict[Any, list[int]]:
    return defaultdict(lambda: [0, 0])


@dataclass(frozen=True)
class LedgerMark:
    """What a `Ledger` has counted up to a round."""

    rows: list[dict[str, Any]]
    by_party: list[dict[str, Any]] | None
    of_round: dict[Crossing, list[int]]
    when: tuple[int, int]
    transcript: int | None


@dataclass
class Ledger:
    """Bytes by step, direction and field since the start of the run, and by parties in a round.

    Attributes:
        totals: ``(step, direction, field) -> [messages, bytes]``, direction "up" or "down".
        of_round: ``Crossing -> [messages, bytes]`` of the newest round.
        when: its coordinates: block, round in it.
        by_party: the totals of each client.
        transcript: is told of every crossing; None for nobody.
    """

    totals: dict[tuple[str, str, str], list[int]] = field(default_factory=_counts)
    of_round: dict[Crossing, list[int]] = field(default_factory=_counts)
    when: tuple[int, int] = (0, 0)
    by_party: Parties = field(default_factory=Parties)
    transcript: Transcript | None = None

    def begin_round(self, block: int, number: int) -> None:
        """Forget the parties of the round before, but for round 0, which opens a block."""
        if self.when != (block, 0) or number != 1:
            self.of_round.clear()
        self.when = (block, number)

    def mark(self) -> LedgerMark:
        """Remember what was counted up to a round, to go back there."""
        length = None if self.transcript is None else self.transcript.tell()
        of_round = {crossing: list(counts) for crossing, counts in self.of_round.items()}
        return LedgerMark(self.rows(), self.by_party.rows(), of_round, self.when, length)

    def go_back(self, mark: LedgerMark) -> None:
        """Forget what was counted since, as its round is tried again."""
        self.load(mark.rows, mark.by_party)
        self.of_round.clear()
        self.of_round.update({crossing: list(kept) for crossing, kept in mark.of_round.items()})
        self.when = mark.when
        if self.transcript is not None and mark.transcript is not None:
            self.transcript.cut(mark.transcript)

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

    def load(
        self, rows: list[dict[str, Any]], by_party: list[dict[str, Any]] | None = None
    ) -> None:
        """Restore what `rows` gave, and those of the parties; None where they are not known."""
        self.by_party.load(by_party)
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
        party = crossing.sender if crossing.direction == "up" else crossing.receiver
        self.by_party.add(crossing.direction, crossing.field, party, count, size)


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
