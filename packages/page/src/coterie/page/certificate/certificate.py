"""What a certificate says, as numbers, and the verdict that follows from them. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.core.files import finite, write_json
from coterie.page.settings import LEAST_SEEDS, CertificateSettings

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


# What a certificate says, as numbers. Torch-free.

NAN = float("nan")
Action = Mapping[str, float]
"""What a leader's action means, by name: its learning rate, its number of epochs."""


@dataclass(frozen=True)
class Gain:
    """What a player gets by the best deviation found, less what the learned play gives it.

    Attributes:
        payoff: of a stage of the learned play: the discounted sum over Σ γ^h, mean over the fresh
            seeds. A deviation is one of one stage, so that is what its gain is set against: beside
            the payoff of all stages any gain looks small if these are many.
        mean: gain on the fresh seeds, paired; negative = no tried deviation pays; NaN = unknown.
        error: standard error of ``mean``; NaN with one seed.
    """

    payoff: float
    mean: float
    error: float

    @property
    def relative(self) -> float:
        """Regret as a share of a stage's payoff; NaN where unknown."""
        return ratio(self.regret, self.payoff)

    @property
    def regret(self) -> float:
        """The gain, at least 0, as to stay with the learned action is possible; NaN if unknown."""
        return max(self.mean, 0.0) if self.known else NAN

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return abs(self.mean) < float("inf") and abs(self.payoff) < float("inf")


@dataclass(frozen=True)
class LeaderGain:
    """A leader's regret in the sense of Definition 4, and that of one stage for information.

    Attributes:
        leader: its number.
        learned: action of its policy.
        action: the best one found.
        gain: over the horizon: this action now, policies afterwards.
        stage: the same for this stage alone, by the action that is best in it; certifies nothing.
    """

    leader: int
    learned: Action
    action: Action
    gain: Gain
    stage: Gain


@dataclass(frozen=True)
class FollowerGain:
    """The follower's gap.

    Attributes:
        after: leader whose deviation it answers to; None = to the learned actions.
        action: what that leader played; empty where none deviated.
        gain: over the horizon, by the best answer found.
        stage: in this stage alone, by the best answer to it.
        stage_bound: no answer gains more in this stage (mean over the seeds); None where nobody
            knows.
    """

    after: int | None
    action: Action
    gain: Gain
    stage: Gain
    stage_bound: float | None


@dataclass(frozen=True)
class Certificate:
    """How near the learned play is to a feedback Stackelberg equilibrium (Definition 4).

    Attributes:
        n_leaders: N.
        n_candidates: actions tried by each leader.
        settings: of the test.
        leaders: those tested.
        follower: after the learned actions.
        off_path: after deviations of leaders, drawn by chance.
        plays: times that the game was played over the horizon.
    """

    n_leaders: int
    n_candidates: int
    settings: CertificateSettings
    leaders: tuple[LeaderGain, ...]
    follower: FollowerGain
    off_path: tuple[FollowerGain, ...] = ()
    plays: int = 0

    @property
    def epsilon(self) -> float:
        """Largest regret of the leaders tested."""
        return _largest(one.gain.regret for one in self.leaders)

    @property
    def worst(self) -> LeaderGain | None:
        """Leader with the largest regret as a share of its payoff; None where none is known."""
        known = [one for one in self.leaders if one.gain.known]
        return max(known, key=lambda one: one.gain.relative, default=None)

    @property
    def relative_epsilon(self) -> float:
        """Largest regret of the leaders tested, each as a share of its own payoff."""
        return _largest(one.gain.relative for one in self.leaders)

    @property
    def relative_upper(self) -> float:
        """Bound, as `relative_epsilon`, that holds for all tested leaders at once in 95 of 100."""
        return _largest(upper([one.gain for one in self.leaders], self.settings.seeds))

    @property
    def mean_regret(self) -> float:
        """Mean of the regrets that are known."""
        return mean_known(one.gain.regret for one in self.leaders)

    @property
    def share_significant(self) -> float:
        """Share of the tested leaders whose gain is beyond two standard errors."""
        gains = [one.gain for one in self.leaders]
        return significant(gains, self.settings) / len(gains) if gains else NAN

    @property
    def share_by_chance(self) -> float:
        """Share that passes two standard errors if no deviation pays."""
        return chance(self.settings.seeds)

    @property
    def screened(self) -> bool:
        """Whether only actions that pay in the present stage were played on."""
        return 0 < self.settings.shortlist < self.n_candidates

    @property
    def reasons(self) -> list[str]:
        """Why this is not an equilibrium; empty if it is one."""
        return reasons(self)

    @property
    def holds(self) -> bool:
        """Whether the learned play is an equilibrium, up to the tolerance and the actions tried.

        That is said of the condition and the stage that the game stands at: neither of other
        conditions nor of later stages, in which nobody was made to deviate.
        """
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """Give everything for JSON, the conclusions included; unknown numbers become None."""
        concluded = (
            "holds reasons epsilon relative_epsilon relative_upper mean_regret share_significant "
            "share_by_chance screened"
        )
        content = {name: getattr(self, name) for name in concluded.split()}
        return dict(finite(content | asdict(self)))

    def save(self, path: Path, rounds: int) -> None:
        """Write JSON, with after how many rounds the run stood where it was tested.

        Raises:
            UserError: the file cannot be written.
        """
        write_json(path, {"rounds": rounds, **self.to_dict()})


def mean_known(values: Iterable[float]) -> float:
    """Mean of the values that are numbers; NaN without any."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else NAN


def _largest(values: Iterable[float]) -> float:
    return max((value for value in values if value == value), default=NAN)
