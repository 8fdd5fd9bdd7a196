"""From privacy settings to middleware and accountant, with contradictions named."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from coterie.core.errors import UserError, nearest
from coterie.core.privacy.noise import Clip, GaussianNoise, LaplaceNoise
from coterie.core.protocol.middleware import Middleware

if TYPE_CHECKING:
    from coterie.core.privacy.accountant import Accountant
    from coterie.core.settings.sections import PrivacySettings

NOISES = {"laplace": LaplaceNoise, "gaussian": GaussianNoise}


def middleware(settings: PrivacySettings) -> tuple[Middleware, ...]:
    """Build what an upload passes on its way out: clipping first, then noise.

    Laplace noise goes with an L1 clip, all else with an L2 clip.

    Warns:
        UserWarning: noise without a clip hides, but guarantees nothing.

    Raises:
        UserError: settings contradict one another.
    """
    _check(settings)
    layers: list[Middleware] = []
    if settings.clip is not None:
        layers.append(Clip(settings.clip, order=1 if settings.noise == "laplace" else 2))
    if settings.noise != "none":
        noise = NOISES[settings.noise]
        layers.append(noise(settings.scale, settings.uploads, settings.padded_rows))
        if settings.clip is None:
            warnings.warn(
                f"{settings.noise} noise without privacy.clip gives no privacy guarantee "
                "(epsilon is infinite): nothing bounds an upload",
                stacklevel=2,
            )
    return tuple(layers)


def accountant(settings: PrivacySettings) -> Accountant:
    """Make the accountant that belongs to `middleware`.

    Raises:
        UserError: settings contradict one another.
    """
    from coterie.core.privacy.accountant import Accountant  # dp_accounting takes a second

    _check(settings)
    return Accountant(
        settings.noise, settings.scale, settings.clip, settings.delta, settings.uploads
    )


def _check(settings: PrivacySettings) -> None:
    noise, scale = settings.noise, settings.scale
    if noise != "none" and noise not in NOISES:
        raise UserError(f"privacy.noise '{noise}' is unknown: {nearest(noise, ['none', *NOISES])}")
    if noise == "none" and scale != 0:
        raise UserError(
            f"privacy.scale {scale} has no effect without noise: set privacy.noise to laplace or "
            "gaussian"
        )
    if noise != "none" and not (scale > 0 and math.isfinite(scale)):
        raise UserError(f"{noise} noise needs a positive privacy.scale, not {scale}")
    if settings.clip is not None and not (settings.clip > 0 and math.isfinite(settings.clip)):
        raise UserError(f"privacy.clip must be a positive number, not {settings.clip}")
    if not 0 < settings.delta < 1:
        raise UserError(f"privacy.delta must lie between 0 and 1, not {settings.delta}")
