"""Fields that uploads of most methods have, each with what it reveals and the form it must have."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from coterie.core.protocol.expected import Count, Expected, Like, Number
from coterie.core.protocol.messages import Reveals, leaves

_NOTHING: frozenset[str] = frozenset()


def changed(of: str, depends_on: Set[str] = _NOTHING) -> Any:
    """Declare what training changed in parameters, each ``(C, ...)`` as in the field ``weights``.

    Args:
        of: the content in words, after "change of".
        depends_on: see `coterie.core.protocol.messages.leaves`.
    """
    return leaves(
        f"change of {of}",
        reveals=Reveals.PARAMETERS,
        depends_on=depends_on,
        expected=Like("weights"),
    )


def measured(what: str, depends_on: Set[str] = _NOTHING, expected: Expected | None = None) -> Any:
    """Declare a measurement over a client's data, by default a number ``(C,)``; see `leaves`."""
    return leaves(
        what,
        reveals=Reveals.MEASUREMENT,
        depends_on=depends_on,
        expected=expected or Number(),
    )


def counted(what: str) -> Any:
    """Declare a number of samples, ``(C,)`` int64, which no private field changes."""
    return leaves(what, reveals=Reveals.STEPS, expected=Count())
