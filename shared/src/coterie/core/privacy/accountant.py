"""What noise and clipping guarantee: epsilon over the uploads so far.

Noise is added on the device, so there are two readers to account for:

- `"server"` sees each upload of each client, and knows whom it asked. Any two data sets of one
  client give uploads at most 2 C apart after clipping to C, and sampling hides nothing from the
  reader who drew the sample. Every upload of parameters costs its client the full price; a round
  may ask for several, or for none.
- `"sum"` sees only the sum over a round's cohort (other clients; or the server behind a secure
  sum). The noise of m clients adds up, and a cohort drawn without replacement and kept secret
  amplifies. Clients are trusted to add their noise.

Both are (epsilon, delta)-differential privacy of everything one client has, any data replaced by
any other (replace-one). Gaussian rounds compose by Rényi divergences (`dp_accounting`); sampling is
without replacement (Wang, Balle, Kasiviswanathan, AISTATS 2019), as `Cohort.sample` draws; Poisson
sampling would not fit. Laplace noise with uploads clipped to an L1 norm C is pure: 2 C / λ each,
delta 0.

Epsilon is infinite, "no guarantee", without noise; without a clip, since then one upload may differ
from another by any amount (this is the Laplace noise of F³CRec, §5.6, "not a formal local
differential privacy mechanism" in its own words); and with padded uploads, whose choice of rows
depends on the data. Fields that are not parameters (losses, metrics, counts) are never covered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import dp_accounting
from dp_accounting.rdp import RdpAccountant

Reader = Literal["server", "sum"]


@dataclass
class Accountant:
    """Releases so far and the noise in them; plain values only, so a checkpoint can hold it.

    Attributes:
        noise: "gaussian" (``scale`` σ, clip in L2), "laplace" (``scale`` λ, clip in L1) or "none".
        scale: the noise's scale, in units of the parameters.
        clip: C, the largest norm of an upload; None = not clipped.
        delta: δ of the Gaussian guarantee.
        uploads: "dense"; with anything else nothing is guaranteed.
        releases: ``(cohort size, population) -> number of uploads`` of each client.

    Example:
        >>> accountant = Accountant("laplace", scale=2.0, clip=1.0)
        >>> accountant.step()
        >>> accountant.step()
        >>> accountant.epsilon()
        2.0
        >>> Accountant("laplace", scale=0.5).guarantee()
        'no guarantee: uploads are not clipped, so no noise can cover their difference'
    """

    noise: str = "none"
    scale: float = 0.0
    clip: float | None = None
    delta: float = 1e-5
    uploads: str = "dense"
    releases: dict[tuple[int, int], int] = field(default_factory=dict)

    def step(self, times: int = 1, fraction: float = 1.0, clients: int = 1) -> None:
        """Count releases: uploads of parameters that a client of a round sends.

        Args:
            times: how many each client sends in the round.
            fraction: share of the clients that was drawn, in (0, 1].
            clients: how many took part; 1 counts no other client's noise.

        Raises:
            ValueError: no client, or a fraction outside (0, 1].
        """
        if not 0 < fraction <= 1 or clients < 1:
            raise ValueError(f"a round needs a fraction in (0, 1] and clients, not {fraction}")
        # Rounded down: a smaller population amplifies less.
        population = max(clients, math.floor(clients / fraction))
        if times:
            cohort = clients, population
            self.releases[cohort] = self.releases.get(cohort, 0) + times

    def epsilon(self, reader: Reader = "server", participations: int | None = None) -> float:
        """Epsilon of one client against a reader; infinite where nothing is guaranteed.

        Args:
            reader: who looks, "server" or "sum" (see the module's text).
            participations: rounds the client took part in, for the reader "server"; None = all.
        """
        total = sum(self.releases.values())
        if total == 0 or participations == 0:
            return 0.0
        if self._nothing() is not None:
            return math.inf
        count = total if participations is None else participations
        if self.noise == "laplace":
            return self._laplace(reader, count)
        return self._gaussian(reader, count)

    def guarantee(self) -> str:
        """Say in one line what holds so far against the server, or why nothing does."""
        why = self._nothing()
        if why is not None:
            return f"no guarantee: {why}"
        delta = 0 if self.noise == "laplace" else self.delta
        return (
            f"({self.epsilon():.3g}, {delta:g})-differential privacy of a client in every round, "
            "for its parameter uploads, against the server; losses and metrics are not covered"
        )

    def to_plain(self) -> dict[str, Any]:
        """The releases so far, for a checkpoint."""
        return {"releases": [[*cohort, count] for cohort, count in self.releases.items()]}

    def load_plain(self, plain: dict[str, Any]) -> None:
        """Restore what `to_plain` gave."""
        self.releases = {(size, population): n for size, population, n in plain["releases"]}

    def _nothing(self) -> str | None:
        """Why nothing is guaranteed; None where something is."""
        if self.noise == "none" or self.scale <= 0:
            return "no noise is added"
        if self.clip is None:
            return "uploads are not clipped, so no noise can cover their difference"
        if self.uploads != "dense":
            return f"which rows a {self.uploads} upload holds depends on the client's items"
        return None

    def _laplace(self, reader: Reader, count: int) -> float:
        one = 2.0 * (self.clip or 0.0) / self.scale
        if reader == "server":
            return count * one
        # One client's own noise is enough; what others add to the sum is post-processing.
        # Amplification without replacement: Balle, Barthe, Gaboardi, NeurIPS 2018.
        return sum(
            times * _amplified(one, size / population)
            for (size, population), times in self.releases.items()
        )

    def _gaussian(self, reader: Reader, count: int) -> float:
        multiplier = self.scale / (2.0 * (self.clip or 0.0))  # replace-one: sensitivity 2 C
        accountant = RdpAccountant(
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
        )
        if reader == "server":
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier), count)
        else:
            for (size, population), times in self.releases.items():
                event = dp_accounting.GaussianDpEvent(multiplier * math.sqrt(size))
                sampled = dp_accounting.SampledWithoutReplacementDpEvent(population, size, event)
                accountant.compose(sampled, times)
        return float(accountant.get_epsilon(self.delta))


def _amplified(epsilon: float, share: float) -> float:
    """Pure epsilon of a mechanism that sees a random share of the clients."""
    if epsilon > 500:  # exp would overflow; log(share) is all that sampling takes off
        return epsilon + math.log(share)
    return math.log1p(share * math.expm1(epsilon))
