"""The servers of all methods: one that passes on, and one that looks on."""

from __future__ import annotations

from torch import Tensor

from coterie.assisted.algorithm import Relay
from coterie.assisted.apart.server import Observer
from coterie.assisted.readings import resolve
from coterie.assisted.settings.run import Settings
from coterie.core.protocol.card import Card


def make_server(card: Card, ids: Tensor, folder: object = None) -> Relay | Observer:
    """Make the server half of the card's method from the card alone."""
    settings = resolve(card.read(Settings))
    return Relay(settings) if settings.method == "mtal" else Observer(settings)
