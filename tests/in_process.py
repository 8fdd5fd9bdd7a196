"""Clients in this process: cohorts that tests can look into, and the bytes they answer."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch

from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.in_process import InProcess
from coterie.core.protocol.folds import Fold
from coterie.core.protocol.messages import Down
from coterie.core.tensors import tree
from coterie.core.wire.codec import Header, encode


class OpenCohort(ExchangeCohort):
    """A cohort in this process, with what a server half does not see."""

    exchange: InProcess

    @property
    def client(self) -> Any:
        return self.exchange.client

    @property
    def store(self) -> Any:
        return self.exchange.store

    @property
    def secret(self) -> Any:
        return self.exchange.secrets.__self__

    @property
    def data(self) -> Any:
        return self.exchange.blocks[max(self.when[0], 0)]

    def keeping(self, store: Any) -> OpenCohort:
        """The same round, of clients with this private state."""
        return dataclasses.replace(self, exchange=dataclasses.replace(self.exchange, kept=store))

    def holding(self, data: Any, client: Any = None) -> OpenCohort:
        """The same round, of clients with other data or of another half."""
        blocks = {max(self.when[0], 0): data}
        changed = dataclasses.replace(
            self.exchange, blocks=blocks, client=client or self.client, kept=self.store
        )
        return dataclasses.replace(self, exchange=changed, ids=data.ids)


def cohort_in_process(
    client, data, store, secret, when, ledger, journal, chunk=None, middleware=()
) -> OpenCohort:
    """All clients with these data, in one round."""
    blocks = {max(when[0], 0): data}
    exchange = InProcess(client, blocks, secret.fold, chunk, middleware, kept=store)
    return OpenCohort(exchange, data.ids, when, ledger, journal)


def request_bytes(cohort: OpenCohort, step: str, down: Down | None, asked: int = 0) -> bytes:
    """Encode what a cohort's ask sends to each client.

    Args:
        cohort: gives the coordinates of the round.
        step: its name.
        down: the message.
        asked: how many asks of the cohort for this step came before.
    """
    return encode(down, Header(step, (*cohort.when, asked)))


def in_process_bytes(
    cohort: OpenCohort, step: str, down: Down | None, asked: int = 0
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
    is_list = cohort.client.form == "list"
    for place in torch.arange(len(cohort)).split(1):
        alone = dataclasses.replace(cohort.part(place), _asked={step: itertools.count(asked)})
        given = alone.ask(cohort.client.steps()[step], down, reduce=Only())
        client = int(alone.ids)
        if client not in given.failed:
            header = Header(step, (*cohort.when, asked), client)
            up = tree.as_one(given.total) if is_list else given.total
            replies[client] = encode(up, header)
    return replies


class Only(Fold):
    """Fold of a single part: itself."""

    def of(self, up: Any) -> Any:
        return up
