"""The engine of one process at C = 1, as bytes: what a client's process must answer."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch

from coterie.core.federation.cohort import InProcessCohort
from coterie.core.protocol.messages import Down
from coterie.core.tensors import tree
from coterie.core.wire.codec import Header, encode


def request_bytes(cohort: InProcessCohort, step: str, down: Down | None, asked: int = 0) -> bytes:
    """Encode what a cohort's ask sends to each client.

    Args:
        cohort: gives the coordinates of the round.
        step: its name.
        down: the message.
        asked: how many asks of the cohort for this step came before.
    """
    return encode(down, Header(step, (*cohort.when, asked)))


def in_process_bytes(
    cohort: InProcessCohort, step: str, down: Down | None, asked: int = 0
) -> dict[int, bytes]:
    """Ask every client alone, in this process, and encode the replies that are accepted.

    Private state is committed as by any ask.

    Args:
        cohort: the clients.
        step: its name.
        down: the message.
        asked: how many asks of the cohort for this step came before.

    Returns:
        Client id -> bytes of its reply.
    """
    replies = {}
    for place in torch.arange(len(cohort)).split(1):
        alone = dataclasses.replace(cohort.part(place), _asked={step: itertools.count(asked)})
        given = alone.ask(cohort.client.steps()[step], down, reduce=_Only())
        client = int(alone.ids)
        if client not in given.failed:
            header = Header(step, (*cohort.when, asked), client)
            up = tree.as_one(given.total) if cohort.is_list else given.total
            replies[client] = encode(up, header)
    return replies


class _Only:
    """Fold of a single upload: itself."""

    def add(self, total: Any, up: Any) -> Any:
        return up
