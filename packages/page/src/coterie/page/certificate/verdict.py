"""From regrets with standard errors to a verdict. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coterie.page.settings.certificate import LEAST_SEEDS, CertificateSettings

if TYPE_CHECKING:
    from coterie.page.certificate.certificate import Certificate, FollowerGain, Gain

_ERRORS = 2.0
_LEVEL = 0.05


def ratio(amount: float, payoff: float) -> float:
    """Give ``amount`` as a share of a payoff; of nothing, any amount is infinite.

    Example:
        >>> ratio(0.5, -2.0), ratio(0.0, 0.0), ratio(1.0, 0.0)
        (0.25, 0.0, inf)
    """
    if amount == 0.0 or math.isnan(amount):
        return amount
    return amount / abs(payoff) if payoff else math.inf


def in_words(action: Mapping[str, float]) -> str:
    """Say what a leader plays, as ``lr 0.05, epochs 14``."""
    return ", ".join(f"{name} {value:.4g}" for name, value in action.items())


def chance(seeds: int) -> float:
    """Share of players beyond two standard errors if nobody gains, t with seeds - 1 degrees.

    Example:
        >>> round(chance(5), 3)
        0.058
    """
    return float(_stats().t.sf(_ERRORS, seeds - 1)) if seeds > 1 else math.nan


def significant(gains: Sequence[Gain], settings: CertificateSettings) -> int:
    """Count the gains beyond two standard errors that are not negligible beside the payoff.

    Without the second, a game without noise (standard error 0) would find rounding significant.
    """
    return sum(
        gain.known and gain.mean > _ERRORS * gain.error and gain.relative > settings.negligible
        for gain in gains
    )


def upper(gains: Sequence[Gain], seeds: int) -> list[float]:
    """Bounds on the relative regrets, together right in 95 of 100 (Bonferroni, t)."""
    known = [gain for gain in gains if gain.known]
    if seeds < 2 or not known:
        return []
    quantile = float(_stats().t.isf(_LEVEL / len(known), seeds - 1))
    return [ratio(max(g.mean + quantile * g.error, 0.0), g.payoff) for g in known]


def _stats() -> Any:
    """`scipy.stats`: a second of imports that a run without fresh seeds does not need."""
    from scipy import stats

    return stats


def reasons(certificate: Certificate) -> list[str]:
    """Say why a certificate is refused."""
    settings, found = certificate.settings, []
    if (n := settings.seeds) < LEAST_SEEDS:
        found.append(f"{n} fresh seeds are too few for standard errors: use {LEAST_SEEDS} or more")
    found += _leaders(certificate)
    for answer in (certificate.follower, *certificate.off_path):
        found += _follower(answer, settings)
    return found


def _leaders(certificate: Certificate) -> list[str]:
    settings = certificate.settings
    gains = [one.gain for one in certificate.leaders]
    known = [gain for gain in gains if gain.known]
    lines = []
    if len(known) < len(gains) or not gains:
        lines.append(f"{len(gains) - len(known)} of {len(gains)} leaders have no payoff to test")
    if nothing := sum(gain.payoff == 0.0 for gain in known):
        lines.append(
            f"{nothing} of {len(gains)} leaders get nothing by the learned play, as if their "
            "training diverged"
        )
    worst = certificate.worst
    if worst is not None and worst.gain.relative > settings.tolerance:
        lines.append(
            f"leader {worst.leader} gains {worst.gain.relative:.2%} of a stage's payoff by one "
            f"deviation, {in_words(worst.action)} in place of {in_words(worst.learned)}; "
            f"the tolerance is {settings.tolerance:.2%}"
        )
    count = significant(known, settings)
    # Fewer than two seeds leave no standard error; that is a reason of its own.
    several = settings.seeds > 1
    most = _stats().binom.isf(_LEVEL, len(known), chance(settings.seeds)) if several else 0
    if count > most:
        lines.append(
            f"{count} of {len(gains)} leaders gain more than two standard errors; "
            f"chance alone gives at most {most:.0f}"
        )
    if noise := _too_noisy(known, settings):
        lines.append(noise)
    return lines


def _too_noisy(known: Sequence[Gain], settings: CertificateSettings) -> str:
    # Who loses so much by its best deviation that two errors leave no regret above the tolerance
    # has one that is known, however noisy the loss.
    within = settings.tolerance
    unclear = [g for g in known if not g.mean + _ERRORS * g.error <= within * abs(g.payoff)]
    largest = max((ratio(gain.error, gain.payoff) for gain in unclear), default=0.0)
    if not _ERRORS * largest > settings.tolerance:
        return ""
    blurred = f"regrets are known only to ±{_ERRORS * largest:.2%} of a stage's payoff"
    if math.isinf(largest) or not settings.tolerance:
        return f"{blurred}, which is more than the tolerance"
    needed = math.ceil(settings.seeds * (_ERRORS * largest / settings.tolerance) ** 2)
    return f"{blurred}: the tolerance of {settings.tolerance:.2%} needs about {needed} fresh seeds"


def _follower(found: FollowerGain, settings: CertificateSettings) -> list[str]:
    where = ""
    if found.after is not None:
        where = f" after leader {found.after} plays {in_words(found.action)}"
    if not found.gain.known:
        return [f"the follower has no payoff to test{where}"]
    lines, one_stage = [], settings.horizon == 1 or settings.gamma == 0.0
    if found.gain.relative > settings.tolerance:
        lines.append(
            f"the follower gains {found.gain.relative:.2%} of a stage's payoff by another "
            f"answer{where}; the tolerance is {settings.tolerance:.2%}"
        )
    elif one_stage and ratio(found.stage_bound or 0.0, found.gain.payoff) > settings.tolerance:
        lines.append(f"the follower's answer is not shown to be within the tolerance{where}")
    if noise := _too_noisy([found.gain], settings):
        lines.append(f"of the follower{where}, {noise}")
    return lines
