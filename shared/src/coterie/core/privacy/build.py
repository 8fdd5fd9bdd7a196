"""From privacy settings to middleware, with contradictions named."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from coterie.core.errors import UserError, nearest
from coterie.core.privacy.noise import NOISES, Clip
from coterie.core.protocol.middleware import Middleware

if TYPE_CHECKING:
    from coterie.core.settings.sections import PrivacySettings


def middleware(settings: PrivacySettings) -> tuple[Middleware, ...]:
    """Build what an upload passes on its way out: clipping first, then noise.

    Laplace noise goes with an L1 clip, all else with an L2 clip.

    Warns:
        UserWarning: noise without a clip hides, but guarantees nothing.

    Raises:
        UserError: settings contradict one another.
    """
    noise, layers = settings.noise, list[Middleware]()
    if noise != "none" and noise not in NOISES:
        raise UserError(f"privacy.noise '{noise}' is unknown: {nearest(noise, ['none', *NOISES])}")
    if noise == "none" and settings.scale != 0:
        raise UserError(
            f"privacy.scale {settings.scale} has no effect without noise: set privacy.noise to "
            "laplace or gaussian"
        )
    if not 0 < settings.delta < 1:
        raise UserError(f"privacy.delta must lie between 0 and 1, not {settings.delta}")
    if settings.clip is not None:
        layers.append(Clip(settings.clip, order=1 if noise == "laplace" else 2))
    if noise != "none":
        layers.append(NOISES[noise](settings.scale, settings.uploads, settings.padded_rows))
        if settings.clip is None:
            warnings.warn(
                f"{noise} noise without privacy.clip gives no privacy guarantee "
                "(epsilon is infinite): nothing bounds an upload",
                stacklevel=2,
            )
    return tuple(layers)
