"""What a server knows of a run whose clients are on other machines: the card and its own folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.federation.exchange import Exchange
from coterie.core.federation.federation import Federation
from coterie.core.protocol.card import Card
from coterie.core.run.apart import expected, federation_of
from coterie.core.run.experiment import Experiment, Need


class Deployed(Experiment[Any]):
    """A run without the data of anybody.

    So its numbers are those that the clients have measured, without what a paper's own experiment
    makes of data that it has.

    Args:
        settings: of the run.
        card: the public card.
        folder: of the server (`coterie.core.run.apart.write_server`).
        exchange: how the clients are reached.
    """

    def __init__(self, settings: Any, card: Card, folder: Path, exchange: Exchange) -> None:
        super().__init__(settings)
        self.paper = card.paper  # type: ignore[misc]
        self._card, self._folder, self._exchange = card, folder, exchange

    @property
    def source(self) -> str:
        """Who has the data."""
        known = expected(self._folder)
        clients = sum(ids.numel() for ids in known.values())
        return f"the data of {clients} clients in {len(known)} places"

    @property
    def blocks(self) -> Sequence[Any]:
        """Nothing, for each block."""
        return [None] * self._card.blocks

    def needs(self) -> Sequence[Need]:
        """Nothing is known."""
        return []

    def federation(self) -> Federation:
        """The server half, and clients that are elsewhere."""
        return federation_of(self._card, self._folder, self._exchange)
