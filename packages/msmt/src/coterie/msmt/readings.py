"""The readings of the paper: which of its open or contradictory choices a run makes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from coterie.core.errors import UserError
from coterie.core.settings.schema import filled
from coterie.msmt.settings import AggregationOptions, Settings

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


def idle(settings: Settings) -> list[str]:
    """Name what was set in the section ``pf`` and has no effect on PF-MSMTrec.

    Args:
        settings: of a run of it, resolved.

    Example:
        >>> from coterie.msmt.settings import AggregationOptions
        >>> idle(resolve(Settings(pf=AggregationOptions(coordinate=False, c=0.1))))
        ['pf.c']
    """
    usual, pf = resolve(Settings(reading=settings.reading)).pf, settings.pf
    names = [each.name for each in fields(pf) if each.name in _unread(pf)]
    return [f"pf.{name}" for name in names if getattr(pf, name) != getattr(usual, name)]


def _unread(pf: AggregationOptions) -> set[str]:
    """Options that it does not look at, beside the others."""
    found = set()
    averaged = [pf.expert == "fedavg", pf.tower == "fedavg"]
    if averaged[0]:
        found |= {"fedbn", "per_expert"}
    if all(averaged):
        found |= {"increments", "psi"}
    if all(averaged) or not pf.psi:  # nobody takes a step along U*
        found |= {"c", "centre", "coordinate"}
    if not pf.coordinate:
        found |= {"c", "centre"}
    if not any(averaged) and not pf.share:
        found |= {"weighting"}
    return found


def _check(settings: Settings) -> None:
    if settings.method == "pf-msmtrec" and settings.model.name != "template":
        raise UserError(
            f"PF-MSMTrec federates the parameters of its template: set model.name to template, or "
            f"choose --method fedavg or local for {settings.model.name}"
        )
    if settings.pf.increments == "averages" and settings.pf.server_lr != 1:
        raise UserError(
            "'pf.server_lr' multiplies the mean of the scenarios' increments, and with 'averages' "
            "there are none: set pf.increments to parameters, or leave it out"
        )
    if settings.pf.fedbn == "literal" and settings.pf.server_lr != 1:
        raise UserError(
            "'pf.server_lr' moves the average that scenarios align with, which 'pf.fedbn' literal "
            "replaces by β: set pf.fedbn to increment or off, or leave it out"
        )
    no_updates = {"local": "none is sent", "central": "the server has the samples themselves"}
    privacy = settings.privacy
    if settings.ensemble.partner == "local":
        no_updates["ensemble"] = no_updates["local"]  # the control
    if settings.method in no_updates and (privacy.noise != "none" or privacy.clip is not None):
        raise UserError(
            "'privacy.noise' and 'privacy.clip' change the updates that scenarios send, and in "
            f"{settings.method} {no_updates[settings.method]}: leave them out"
        )
