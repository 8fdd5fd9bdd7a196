"""The readings of the paper: which of its open or contradictory choices a run makes."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import UserError
from coterie.core.settings.schema import filled
from coterie.msmt.settings.run import Settings

_CHOICES: dict[str, dict[str, Any]] = {
    "recommended": {"increments": "parameters", "fedbn": "increment"},
    "literal": {"increments": "averages", "fedbn": "literal"},
}
"""recommended: increments are each scenario's own, FedBN whitens them, W̄ is the averaged
parameter; literal: Eqs. 10 and 14 as printed, by which all increments are the same."""


def resolve(settings: Settings) -> Settings:
    """Fill in what the reading leaves open; what the user chose stays.

    Raises:
        UserError: choices do not go together.

    Example:
        >>> resolve(Settings(reading="literal")).pf.increments
        'averages'
    """
    if settings.reading not in _CHOICES:
        raise UserError(
            "no code of PF-MSMTrec was released: choose --reading recommended or literal"
        )
    found = filled(settings, {"pf": _CHOICES[settings.reading]})
    _check(found)
    return found


def _check(settings: Settings) -> None:
    if settings.method == "pf-msmtrec" and settings.model.name != "template":
        raise UserError(
            f"PF-MSMTrec federates the parameters of its template: set model.name to template, or "
            f"choose --method fedavg or local for {settings.model.name}"
        )
    no_updates = {"local": "none is sent", "central": "the server has the samples themselves"}
    privacy = settings.privacy
    if settings.method in no_updates and (privacy.noise != "none" or privacy.clip is not None):
        raise UserError(
            "'privacy.noise' and 'privacy.clip' change the updates that scenarios send, and in "
            f"{settings.method} {no_updates[settings.method]}: leave them out"
        )
