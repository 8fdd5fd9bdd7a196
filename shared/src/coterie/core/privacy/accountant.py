"""What noise and clipping guarantee: epsilon over the uploads so far.

Noise is added on the device, and the reader is the server, which sees each upload of each client
and knows whom it asked: sampling hides nothing from the reader who drew the sample. Any two data
sets of one client give uploads at most 2 C apart after clipping to C, so every upload of parameters
costs its client the full price; a round may ask for several, or for none.

The guarantee is (epsilon, delta)-differential privacy of everything one client has, any data
replaced by any other (replace-one). Gaussian uploads compose by Rényi divergences
(`dp_accounting`); Laplace noise with uploads clipped to an L1 norm C is pure: 2 C / λ each, delta
0. Fields that are not parameters (losses, metrics, counts) are never covered.
"""

from __future__ import annotations

import math

from coterie.core.settings.sections import PrivacySettings


def epsilon(settings: PrivacySettings, releases: int) -> float:
    """Epsilon of one client against the server; infinite where nothing is guaranteed.

    Nothing is guaranteed without noise; without a clip, since then one upload may differ from
    another by any amount (this is the Laplace noise of F³CRec, §5.6, "not a formal local
    differential privacy mechanism" in its own words); and with padded uploads, whose choice of rows
    depends on the data.

    Args:
        settings: of clip and noise; ``delta`` is that of the Gaussian guarantee.
        releases: uploads of parameters by each client so far.

    Example:
        >>> epsilon(PrivacySettings(clip=1.0, noise="laplace", scale=2.0), releases=2)
        2.0
    """
    if releases == 0:
        return 0.0
    if settings.noise == "none" or settings.clip is None or settings.uploads != "dense":
        return math.inf
    difference = 2.0 * settings.clip
    if settings.noise == "laplace":
        return releases * difference / settings.scale
    return _gaussian(settings.scale / difference, releases, settings.delta)


def _gaussian(multiplier: float, releases: int, delta: float) -> float:
    import dp_accounting  # takes a second
    from dp_accounting.rdp import RdpAccountant

    spent = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    spent.compose(dp_accounting.GaussianDpEvent(multiplier), releases)
    return float(spent.get_epsilon(delta))
