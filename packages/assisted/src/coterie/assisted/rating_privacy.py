"""What noise on residuals guarantees one rating.

The ε of the accountant is that of one residual. A rating moves more than its own: F⁰ is the mean of
its column (with start constant of all ratings of the organisation), so all residuals of the column
move with it. Of n ratings in such a mean, one that changes moves its own residual by D (1 - 1/n)
and each other one by D/n, where D is what a residual moves by with its rating alone; clipped to
[-b, b] none moves by more than 2 b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from coterie.assisted.data import OwnDomain
from coterie.assisted.settings import SENDING, Settings, covers
from coterie.core.privacy.accountant import epsilon


def sensitivity(bound: float, moves: float, order: int, alone: bool) -> float:
    """How far one rating moves the residuals of an organisation, at most.

    Args:
        bound: b.
        moves: D.
        order: 1 for the L1 norm, 2 for the L2 norm.
        alone: whether a rating moves its own residual only.

    Example:
        >>> sensitivity(4.0, 8.0, order=1, alone=True), sensitivity(4.0, 8.0, order=1, alone=False)
        (8.0, 16.0)
    """
    own = min(2.0 * bound, moves)
    if alone:
        return own
    if order == 1:
        return own + moves  # the others move by (n - 1) D/n together
    return min(moves, math.hypot(own, moves / 2.0))  # by D √(n - 1)/n


def epsilon_of_rating(settings: Settings, span: float) -> float:
    """ε of one rating in the residuals of round 1; infinite where nothing is guaranteed.

    In later rounds of MTAL residuals depend on all ratings of an organisation, by its own fits and
    by those of others: of these there is no guarantee.

    Args:
        settings: with the reading's choices resolved.
        span: of the scale: highest less lowest rating.

    Example:
        >>> from coterie.assisted.settings import ProtectSettings
        >>> epsilon_of_rating(Settings(protect=ProtectSettings("dp")), span=4.0)
        inf
    """
    privacy = settings.privacy
    bounded = privacy.clip_by == "entry" and privacy.clip is not None and covers(privacy)
    if settings.method not in SENDING or not bounded or settings.start == "bias":
        return math.inf
    of_ratings = settings.data.feedback == "explicit" or settings.objectives
    moves = max(2.0 * span if of_ratings else 1.0, 1.0)  # of 2 (R - F), and of R - σ(F)
    order, alone = 1 if privacy.noise == "laplace" else 2, settings.protect.centre == "receiver"
    assert privacy.clip is not None
    found = sensitivity(privacy.clip, moves, order, alone)
    return epsilon(replace(privacy, clip=found / 2.0), 1)


def rating_span(each: Sequence[OwnDomain]) -> tuple[float, float]:
    """The lowest and the highest rating of all organisations."""
    cells = [part.values for one in each for part in (one.train, one.valid, one.test)]
    low, high = torch.cat(cells).aminmax()
    return float(low), float(high)


def remark(settings: Settings, span: float) -> str | None:
    """Say in a line what ``privacy/epsilon`` means for a rating; None where there is no ε."""
    found = epsilon_of_rating(settings, span)
    if math.isinf(found):
        return None
    once = settings.method == "residuals"
    later = "" if once else " in round 1; of later rounds, which are made of fits, there is none"
    guessed = settings.data.feedback == "explicit" and settings.data.scale is None
    unless = " (if none can be outside of those that are there: data.scale says)" if guessed else ""
    what = "privacy/epsilon is that of one residual"
    return f"the ε of one rating is {found:.3g}{later}{unless}: {what}"
