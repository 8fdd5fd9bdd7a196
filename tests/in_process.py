"""Clients in this process: cohorts that tests can look into."""

from __future__ import annotations

import dataclasses
from typing import Any

from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.in_process import InProcess


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
