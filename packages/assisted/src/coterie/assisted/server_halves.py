"""The server half of every method, made from the card alone. Imports no client half."""

from __future__ import annotations

from torch import Tensor

from coterie.assisted.algorithm import Observer, Relay, RelayOnce
from coterie.assisted.readings import resolve
from coterie.assisted.settings import Settings
from coterie.assisted.sums import Adder
from coterie.core.protocol.card import Card

ServerHalf = Relay | RelayOnce | Adder | Observer


def server_half(settings: Settings) -> ServerHalf:
    """Make the server half of a method.

    Args:
        settings: with the reading's choices resolved.
    """
    match settings.method:
        case "mtal":
            return Relay(settings)
        case "residuals":
            return RelayOnce(settings)
        case "sums":
            return Adder(settings)
        case _:
            return Observer(settings)


def make_server(card: Card, ids: Tensor, folder: object = None) -> ServerHalf:
    """Make the server half of the card's method from the card alone."""
    return server_half(resolve(card.read(Settings)))
