"""The three readings of the paper: which of its open or contradictory choices a run makes."""

from __future__ import annotations

from typing import Any

from coterie.continual.settings import Settings
from coterie.core.settings.schema import filled

DEFAULT_LR = {"fedmf": 1.0, "fedncf": 0.1, "pfedrec": 0.1}


def choices(settings: Settings) -> dict[str, Any]:
    """Give the choices of ``settings.reading``, by name or by section and name.

    - recommended: the best round is carried on, distillation has its minus sign and is a mean,
      later blocks are split in time, so nothing is predicted from its own future, and ties
      by chance, so the order of the file tells nothing.
    - literal: Eq. 5 as printed (a sum, no minus sign), later blocks split at random (section 5.1).
    - released: as the public code runs: FedMF carries the last round while teacher and old table
      are the best round's; FedNCF and PFedRec draw private parameters anew in every block; users
      keep the list of the last block they took part in; equal times keep the order of the file.
    """
    fedmf, literal = settings.model.name == "fedmf", settings.reading == "literal"
    released = settings.reading == "released"
    return {
        "carry": "last" if released and fedmf else "best",
        "restart_private": released and not fedmf,
        "replay": {
            "reduction": "sum" if literal else "mean",
            "sign": "printed" if literal else "minus",
            "remember": "last-seen" if released else "block-start",
        },
        "data": {
            "block_order": "random" if literal else "chronological",
            "ties": "file" if released else "random",
        },
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
    lr = DEFAULT_LR[settings.model.name]
    return filled(settings, {"model": {"lr": lr}} | choices(settings))
