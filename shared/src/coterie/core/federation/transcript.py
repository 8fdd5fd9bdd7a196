"""The transcript: a line for each field that crosses in an ask, with the hash of what it holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._open: dict[Crossing, _Line] = {}

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
