"""Server and clients compute with the same constants, or nothing is computed at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core.errors import UserError
from coterie.core.protocol.client import Client
from coterie.core.protocol.server import Server


def check_alike(server: Server[Any], client: Client[Any, Any] | None) -> None:
    """Compare what both halves compute with and neither sends, before the first round.

    Halves that name no constants have none; a server whose clients run elsewhere has no client half
    to look at, and both are held against the card.

    Raises:
        UserError: one differs; names it.
    """
    theirs = server.constants()
    if theirs and client is not None:
        check_constants(theirs, client.constants())


def check_constants(theirs: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Compare two lists of digests by name.

    Raises:
        UserError: one differs; names it.
    """
    for name in dict.fromkeys([*theirs, *own]):
        if theirs.get(name) != own.get(name):
            raise UserError(
                f"server and clients have another '{name}', a constant of the module that is not "
                "sent: draw it from a seed of its own or load it, so that it is the same whenever "
                "the module is made"
            )
