"""The client half of every method, made from the card alone. Imports no server half."""

from __future__ import annotations

from coterie.assisted.apart import Apart, Independent
from coterie.assisted.client import Organisation
from coterie.assisted.readings import resolve
from coterie.assisted.receiver import Receiver
from coterie.assisted.settings import Settings
from coterie.assisted.sums_client import Summing
from coterie.core.protocol.card import Card


def client_half(settings: Settings) -> Organisation | Independent:
    """Make the client half of a method.

    Args:
        settings: with the reading's choices resolved.
    """
    match settings.method:
        case "mtal":
            return Organisation(settings)
        case "residuals":
            return Receiver(settings)
        case "sums":
            return Summing(settings)
        case _:
            return Apart(settings)


def make_client(card: Card, folder: object = None) -> Organisation | Independent:
    """Make the client half of the card's method from the card alone."""
    return client_half(resolve(card.read(Settings)))
