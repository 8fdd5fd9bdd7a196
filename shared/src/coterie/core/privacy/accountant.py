"""What noise and clipping guarantee: epsilon over the uploads so far.

Noise is added on the device, and the reader is the server, which sees each upload of each client
and knows whom it asked: sampling hides nothing from the reader who drew the sample. So every
release costs its client the full price; a round may ask for several, or for none. What is told is
the epsilon of the client that was asked most.

What is guaranteed depends on what is clipped (`PrivacySettings.clip_by`):

- ``upload``: (epsilon, delta)-differential privacy of everything one client has, any data replaced
  by any other (replace-one). Any two data sets give uploads at most 2 C apart, in all tensors
  together, after clipping to the norm C; an upload is one release.
- ``entry``: the same for one entry, a cell that may stand at one place in each tensor of an upload,
  as a user's value in a vector of residuals. Clamped to [-b, b] it moves by at most 2 b; each
  tensor is one release of it. What moves k entries of a tensor together, such as a user with k
  ratings, has the guarantee of k ``cells``. Nothing is said of data that move more, as a fit moves
  everywhere with any of its rows.

Gaussian releases compose by Rényi divergences (`dp_accounting`), of L2 sensitivity 2 C, or 2 b √k;
Laplace noise is pure: 2 C / λ each with uploads clipped to an L1 norm C, or 2 b k / λ, delta 0.

That is against the server. Where the server adds the noise, once, to a sum (``privacy.at``), the
reader is who sees the model, and the guarantee is `epsilon_of_sums`.

Never covered are fields that are no releases (losses, metrics, counts), and uploads of steps that
``privacy.steps`` leaves out; `coterie.core.privacy.build.remarks` names them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import UserError
from coterie.core.protocol.journal import Release
from coterie.core.settings.sections import PrivacySettings


def epsilon(settings: PrivacySettings, releases: int, cells: int = 1) -> float:
    """Epsilon of one client, or entry, against the server; infinite where nothing is guaranteed.

    Nothing is guaranteed without noise; without a clip, since then one upload may differ from
    another by any amount (this is the Laplace noise of F³CRec, §5.6, "not a formal local
    differential privacy mechanism" in its own words); and with padded uploads, whose choice of rows
    depends on the data.

    Args:
        settings: of clip and noise; ``delta`` is that of the Gaussian guarantee.
        releases: by each client so far, see `price`.
        cells: with entries clipped, how many of each tensor are replaced together.

    Raises:
        UserError: there are several cells where whole uploads are clipped, or none.

    Example:
        >>> epsilon(PrivacySettings(clip=1.0, noise="laplace", scale=2.0), releases=2)
        2.0
        >>> entries = PrivacySettings(clip=1.0, noise="laplace", scale=2.0, clip_by="entry")
        >>> epsilon(entries, releases=2), epsilon(entries, releases=2, cells=5)
        (2.0, 10.0)
    """
    if cells < 1 or (cells > 1 and settings.clip_by != "entry"):
        raise UserError(
            f"epsilon of {cells} cells: a whole upload is one, set privacy.clip_by to entry"
        )
    if releases == 0:
        return 0.0
    if settings.noise == "none" or settings.clip is None or settings.uploads != "dense":
        return math.inf
    difference = 2.0 * settings.clip
    if settings.noise == "laplace":
        return releases * difference * cells / settings.scale
    return _gaussian(settings.scale / (difference * math.sqrt(cells)), releases, settings.delta)


def price(settings: PrivacySettings, asked: Sequence[Release]) -> int:
    """Count the noised releases of a client that took part in some asks.

    Args:
        settings: which steps have noise, and whether each tensor is a release or the whole upload.
        asked: as `Journal.releases` has them.

    Example:
        >>> import torch
        >>> entries = PrivacySettings(clip=1.0, noise="laplace", scale=2.0, clip_by="entry")
        >>> someone = torch.tensor([0])
        >>> price(entries, [Release("fit", 2, someone, someone, 1)])
        2
    """
    noised = [one.tensors for one in covered(settings, asked)]
    return sum(noised) if settings.clip_by == "entry" else len(noised)


def covered(settings: PrivacySettings, asked: Sequence[Release]) -> list[Release]:
    """The asks whose uploads have noise."""
    return [one for one in asked if not settings.steps or one.step in settings.steps]


Sampled = tuple[int, int, int]
"""Of a round: how many clients were asked, among how many, and how often for sums with noise."""


def epsilon_of_sums(settings: PrivacySettings, most: int, rounds: Mapping[Sampled, int]) -> float:
    """Epsilon of one client against who sees sums with noise of the server's, as models.

    Any two data sets of a client change a sum by at most 2 C. Two bounds hold, and the smaller one
    is given: by how often the client that took part most is in a sum, whoever knows when; and by
    all rounds, where nobody but the server knows who was drawn (sampling without replacement,
    Wang, Balle and Kasiviswanathan, AISTATS 2019, Theorem 27). Who is asked and does not answer
    counts as drawn: a client that always answers is drawn no less often.

    Args:
        settings: of clip and noise.
        most: sums that the client of which there are most is in.
        rounds: how many there were of each kind.

    Example:
        >>> given = PrivacySettings(clip=1.0, noise="gaussian", scale=8.0, at="server")
        >>> everybody, a_tenth = {(100, 100, 1): 50}, {(10, 100, 1): 50}
        >>> epsilon_of_sums(given, 50, everybody) > 4 * epsilon_of_sums(given, 9, a_tenth)
        True
    """
    if not most:
        return 0.0
    assert settings.clip is not None
    multiplier = settings.scale / (2.0 * settings.clip)
    told = _gaussian(multiplier, most, settings.delta)
    if all(asked == among for asked, among, _ in rounds):  # nobody is hidden
        return told
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    orders = _orders()
    spent = np.zeros(len(orders))
    for (asked, among, sums), count in rounds.items():
        spent += count * _divergences(multiplier / math.sqrt(sums), asked, among)
    hidden, _ = compute_epsilon(orders, spent, settings.delta)
    return min(float(hidden), told)


@cache
def _divergences(multiplier: float, asked: int, among: int) -> NDArray[np.float64]:
    """Rényi divergences of one sum over a sample, one an order; a fifth of a second each."""
    import dp_accounting

    spent = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    each = dp_accounting.GaussianDpEvent(multiplier)
    spent.compose(dp_accounting.SampledWithoutReplacementDpEvent(among, asked, each))
    return np.asarray(spent._rdp)


def _orders() -> NDArray[np.float64]:
    from dp_accounting.rdp import RdpAccountant

    return np.asarray(RdpAccountant()._orders)


def _gaussian(multiplier: float, releases: int, delta: float) -> float:
    import dp_accounting  # takes a second
    from dp_accounting.rdp import RdpAccountant

    spent = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    spent.compose(dp_accounting.GaussianDpEvent(multiplier), releases)
    return float(spent.get_epsilon(delta))
