"""The clients of all methods: those that assist each other, and those that stay apart."""

from __future__ import annotations

from coterie.assisted.apart.client import Apart
from coterie.assisted.client import Organisation
from coterie.assisted.readings import resolve
from coterie.assisted.settings.run import Settings
from coterie.core.protocol.card import Card


def make_client(card: Card, folder: object = None) -> Organisation | Apart:
    """Make the client half of the card's method from the card alone."""
    settings = resolve(card.read(Settings))
    return Organisation(settings) if settings.method == "mtal" else Apart(settings)
