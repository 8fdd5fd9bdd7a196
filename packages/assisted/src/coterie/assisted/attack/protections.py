"""Protections that are attacked beside a run's own, and what each of them guarantees."""

from __future__ import annotations

import math
from dataclasses import replace

from coterie.assisted.readings import resolve
from coterie.assisted.settings.protect import RESIDUAL_STEP, ProtectSettings
from coterie.assisted.settings.run import Settings
from coterie.core.privacy.accountant import epsilon, price
from coterie.core.settings.sections import PrivacySettings

NO_GUARANTEE = "no guarantee"


def protections(settings: Settings, clip: float, each: float) -> dict[str, Settings]:
    """Settings to attack, by name: the run's own first, marked by a star.

    Args:
        settings: of the run.
        clip: public bound of a residual for noise with a guarantee.
        each: ε of that noise in a round.
    """
    noise = PrivacySettings(
        clip=clip, clip_by="entry", noise="laplace", scale=2 * clip / each, steps=(RESIDUAL_STEP,)
    )
    listed = {
        "none": (ProtectSettings(), PrivacySettings()),
        "dp-100": (ProtectSettings("dp", alpha=100.0), PrivacySettings()),
        "dp-10": (ProtectSettings("dp"), PrivacySettings()),
        "dp-1": (ProtectSettings("dp", alpha=1.0), PrivacySettings()),
        "ip-10": (ProtectSettings("ip"), PrivacySettings()),
        f"laplace, clip {clip:g}": (ProtectSettings(), noise),
    }
    name = settings.protect.name
    if name == "none":
        name = settings.privacy.noise
    return {f"{name} *": settings} | {
        other: resolve(replace(settings, protect=protect, privacy=privacy))
        for other, (protect, privacy) in listed.items()
        if other != name
    }


def guarantee(settings: Settings) -> str:
    """Say what differential privacy residuals have; dp and ip have none.

    Example:
        >>> guarantee(Settings(protect=ProtectSettings("dp")))
        'no guarantee'
    """
    privacy, rounds = settings.privacy, settings.rounds
    once, always = (
        epsilon(privacy, price(privacy, [(RESIDUAL_STEP, 1)] * count)) for count in (1, rounds)
    )
    if not math.isfinite(once) or once == 0:
        return NO_GUARANTEE
    what = "a rating" if privacy.clip_by == "entry" else "an organisation"
    return f"ε {once:.3g} of {what} a round, {always:.3g} in {rounds}"
