"""The three readings of the paper: which of its open or contradictory choices a run makes."""

from __future__ import annotations

from typing import Any

from coterie.assisted.settings.run import Settings
from coterie.core.settings.schema import filled

_START = {"recommended": "smoothed", "literal": "logit", "released": "mean"}


def choices(settings: Settings) -> dict[str, Any]:
    """Give what ``settings.reading`` chooses where the settings leave it open.

    - recommended: the best round is chosen on validation cells, RMSE and rankings are of all
      cells and rows, and the base model of implicit feedback is the logit of a smoothed rate.
    - literal: as printed: F⁰ = E(R), a share of positives, whose logit the loss takes.
    - released: as the public code does: F⁰ is the share itself, taken for a logit; ratings of 3.5
      are positive; there is no validation set, the best round is that of the test; an organisation
      that protects its residuals fits the protected ones itself.
    """
    as_printed = settings.reading != "recommended"
    found: dict[str, Any] = {
        "start": _START[settings.reading],
        "evaluation": "pooled" if as_printed else "local",
    }
    if settings.protect.residuals != "none":
        own = "protected" if settings.reading == "released" else "clean"
        found["protect"] = {"own": own}
    return found


def resolve(settings: Settings) -> Settings:
    """Fill what is open; what the user chose stays.

    Example:
        >>> resolve(Settings(reading="released")).start
        'mean'
    """
    return filled(settings, choices(settings))
