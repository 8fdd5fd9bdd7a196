"""What a certificate says, as numbers. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.core.files import finite, write_json
from coterie.page.certificate import verdict
from coterie.page.settings.certificate import CertificateSettings

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
        return verdict.ratio(self.regret, self.payoff)

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
        return _largest(verdict.upper([one.gain for one in self.leaders], self.settings.seeds))

    @property
    def mean_regret(self) -> float:
        """Mean of the regrets that are known."""
        return mean_known(one.gain.regret for one in self.leaders)

    @property
    def share_significant(self) -> float:
        """Share of the tested leaders whose gain is beyond two standard errors."""
        gains = [one.gain for one in self.leaders]
        return verdict.significant(gains, self.settings) / len(gains) if gains else NAN

    @property
    def share_by_chance(self) -> float:
        """Share that passes two standard errors if no deviation pays."""
        return verdict.chance(self.settings.seeds)

    @property
    def screened(self) -> bool:
        """Whether only actions that pay in the present stage were played on."""
        return 0 < self.settings.shortlist < self.n_candidates

    @property
    def reasons(self) -> list[str]:
        """Why this is not an equilibrium; empty if it is one."""
        return verdict.reasons(self)

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
