"""The three readings of the paper: which of its open or contradictory choices a run makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.continual.settings import Settings

DEFAULT_LR = {"fedmf": 1.0, "fedncf": 0.1, "pfedrec": 0.1}


def choices(settings: Settings) -> dict[str, dict[str, Any]]:
    """Give the choices of ``settings.reading`` by section; "" is the top level.

    - recommended: the best round is carried on, distillation has its minus sign and is a mean,
      later blocks are split in time, so nothing is predicted from its own future, and ties
      by chance, so the order of the file tells nothing.
    - literal: Eq. 5 as printed (a sum, no minus sign), later blocks split at random (section 5.1).
    - released: as the public code runs: FedMF carries the last round while teacher and old table
      are the best round's; FedNCF and PFedRec draw private parameters anew in every block; users
      keep the list of the last block they took part in; equal times keep the order of the file.
    """
    fedmf = settings.model.name == "fedmf"
    match settings.reading:
        case "recommended":
            return {
                "": {"carry": "best", "restart_private": False},
                "replay": {"reduction": "mean", "sign": "minus", "remember": "block-start"},
                "data": {"block_order": "chronological", "ties": "random"},
            }
        case "literal":
            return {
                "": {"carry": "best", "restart_private": False},
                "replay": {"reduction": "sum", "sign": "printed", "remember": "block-start"},
                "data": {"block_order": "random", "ties": "random"},
            }
        case "released":
            return {
                "": {"carry": "last" if fedmf else "best", "restart_private": not fedmf},
                "replay": {"reduction": "mean", "sign": "minus", "remember": "last-seen"},
                "data": {"block_order": "chronological", "ties": "file"},
            }


def resolve(settings: Settings) -> Settings:
    """Fill every open choice (None) with that of the reading; a choice the user made stays.

    The learning rate, which has a default for each backbone, is filled in too.

    Example:
        >>> resolve(Settings(reading="released")).carry
        'last'
        >>> resolve(Settings(reading="released", carry="best")).carry
        'best'
    """
    if settings.model.lr is None:
        lr = DEFAULT_LR[settings.model.name]
        settings = replace(settings, model=replace(settings.model, lr=lr))
    for section, chosen in choices(settings).items():
        part = getattr(settings, section) if section else settings
        open_ones = {name: value for name, value in chosen.items() if getattr(part, name) is None}
        part = replace(part, **open_ones)
        changed: dict[str, Any] = {section: part}
        settings = replace(settings, **changed) if section else part
    return settings
