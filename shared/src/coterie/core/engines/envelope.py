"""What travels around messages between a server and the processes of its clients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from coterie.core.wire.travel import Nest


@dataclass(frozen=True)
class RequestHeader:
    """What a request belongs to.

    Attributes:
        run: name of the run; private state is of one run.
        block: of the round.
        round: in the block.
        number: how many requests of the round came before.
        draw: how many for this step; folded into the clients' keys.
        step: what is asked for; ``ENROL`` and ``PRESENT`` are no steps.
        clients: ids of those who are asked.
        one_each: whether the message is stacked over them.
        fold: what to make of the uploads before they leave, by name and fields; None for nothing.
    """

    run: str
    block: int
    round: int
    number: int
    draw: int
    step: str
    clients: tuple[int, ...]
    one_each: bool = False
    fold: dict[str, Nest] | None = None

    @property
    def when(self) -> tuple[int, int]:
        """The round."""
        return self.block, self.round


@dataclass(frozen=True)
class ReplyHeader:
    """What a reply belongs to.

    Attributes:
        request: `digest` of the request.
        clients: ids of those whose answer counts, in the order in which they were asked.
        refused: id -> why its answer does not count.
        folded: whether the uploads are folded.
        sizes: field -> bytes of the uploads before they were folded; empty where they are not.
    """

    request: str
    clients: tuple[int, ...]
    refused: dict[str, str]
    folded: bool = False
    sizes: dict[str, int] | None = None


ENROL, PRESENT = "@enrol", "@present"


def digest(request: bytes) -> str:
    """Name a request by what is in it, bit for bit."""
    return hashlib.sha256(request).hexdigest()
