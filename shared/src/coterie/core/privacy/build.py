"""From privacy settings to middleware, with contradictions named, and what they leave open."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coterie.core.errors import UserError, nearest
from coterie.core.privacy.noise import NOISES, Clip, EntryClip
from coterie.core.privacy.releases import releasing
from coterie.core.protocol.client import Middleware, OfSteps

if TYPE_CHECKING:
    from coterie.core.protocol.messages import AnyStep
    from coterie.core.settings.sections import PrivacySettings

    Steps = Mapping[str, AnyStep[Any, Any]]


def middleware(settings: PrivacySettings, steps: Steps) -> tuple[Middleware, ...]:
    """Build what an upload passes on its way out: clipping first, then noise.

    Whole uploads are clipped in L1 with Laplace noise, in L2 with all else.

    Args:
        settings: of clip and noise.
        steps: of the client half, by name.

    Warns:
        UserWarning: noise without a clip hides, but guarantees nothing; or steps without noise
            release something too.

    Raises:
        UserError: settings contradict one another, or name a step that has no releases.
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
    check_steps(settings.steps, steps)
    if settings.clip is not None:
        whole = Clip(settings.clip, order=1 if noise == "laplace" else 2)
        layers.append(EntryClip(settings.clip) if settings.clip_by == "entry" else whole)
    if noise != "none" and settings.at == "client":
        layers.append(NOISES[noise](settings.scale, settings.uploads, settings.padded_rows))
        if settings.clip is None:
            warnings.warn(
                f"{noise} noise without privacy.clip gives no privacy guarantee "
                "(epsilon is infinite): nothing bounds an upload",
                stacklevel=2,
            )
    if noise != "none" and (without := uncovered(settings, steps)):
        warnings.warn(without, stacklevel=2)
    chosen = settings.steps
    return tuple(OfSteps(layer, chosen) if chosen else layer for layer in layers)


def remarks(settings: PrivacySettings, steps: Steps) -> list[str]:
    """Say, in a line each, what a reader of ``privacy/epsilon`` must know beside the number."""
    if settings.noise == "none":
        return []
    found = []
    if settings.clip is not None and settings.clip_by == "entry":
        found.append(
            "privacy/epsilon is for one entry of a client's data, at one place in each tensor that "
            "it releases; not for a whole row, nor for a client"
        )
    if settings.at == "server":
        found.append(
            "privacy/epsilon is for all data of a client, against who sees the model and not the "
            "server, which sees each upload; it takes who was drawn in a round to be the server's "
            "secret, and who has data at all to be none"
        )
    return [*found, *filter(None, [uncovered(settings, steps)])]


def uncovered(settings: PrivacySettings, steps: Steps) -> str | None:
    """Say which releases have no noise since ``privacy.steps`` leaves them out, if any."""
    left = {name: one for name, one in releasing(steps).items() if name not in settings.steps}
    if not settings.steps or not left:
        return None
    said = "; ".join(f"{name} ({', '.join(fields)})" for name, fields in left.items())
    return (
        f"noise and privacy/epsilon cover the uploads of {', '.join(settings.steps)} only: those "
        f"of other steps leave as they are: {said}"
    )


def check_steps(names: Sequence[str], steps: Steps) -> None:
    """Check ``privacy.steps`` against the steps of a client half.

    Raises:
        UserError: it has no such step, or the step uploads no releases.
    """
    known = releasing(steps)
    for name in names:
        if name not in steps:
            raise UserError(f"privacy.steps: no step is called '{name}': {nearest(name, steps)}")
        if name not in known:
            raise UserError(
                f"privacy.steps: step '{name}' uploads nothing that noise could cover: "
                f"{nearest(name, known) if known else 'leave it out'}"
            )
