"""The three readings of the paper: which of its open or contradictory choices a run makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.llm.settings import Settings

FULLY_TRAINED = ("tiny-item", "recformer")


def choices(settings: Settings) -> dict[str, Any]:
    """Give the choices of ``settings.reading`` for the section ``mixing``.

    - recommended: shifted cosines of what a round changed in the adapters. The adapters themselves
      start from one point and stay nearly parallel, so their cosines tell nobody apart.
    - literal: plain cosines of the adapters (Eq. 3), exponent (t + 1)/β.
    - released: shifted cosines of the adapters, exponent t + 1/β, as the public code runs for
      RecFormer; for BIGRec it never warms up, which is the method pplr-attention.
    """
    match settings.reading:
        case "recommended":
            return {"similarity": "shifted", "similarity_on": "updates", "exponent": "paper"}
        case "literal":
            return {"similarity": "cosine", "similarity_on": "weights", "exponent": "paper"}
        case "released":
            return {"similarity": "shifted", "similarity_on": "weights", "exponent": "released"}


def resolve(settings: Settings) -> Settings:
    """Fill every open choice (None) with that of the reading; a choice the user made stays.

    What a backbone trains by default is filled in too.

    Example:
        >>> resolve(Settings(reading="literal")).mixing.similarity
        'cosine'
    """
    if settings.model.trained is None:
        trained: Any = "all" if settings.model.name in FULLY_TRAINED else "lora"
        settings = replace(settings, model=replace(settings.model, trained=trained))
    mixing = settings.mixing
    open_ones = {n: v for n, v in choices(settings).items() if getattr(mixing, n) is None}
    return replace(settings, mixing=replace(mixing, **open_ones))
