"""Settings of the certificate. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.errors import UserError
from coterie.core.settings.sections import at_least

LEAST_SEEDS = 5
"""With fewer, two standard errors are passed by chance too often (7 % with 4)."""


@dataclass(frozen=True)
class CertificateSettings:
    """How the equilibrium is tested.

    Raises:
        UserError: a value is out of range.
    """

    grid: int = 5
    """values of each factor that are tried, from the least to the most"""
    horizon: int = 3
    """stages H that count, the present one included"""
    gamma: float = 0.99
    """discount factor γ of a stage"""
    screen_seeds: int = 3
    """repetitions on which candidate actions are compared"""
    shortlist: int = 0
    """candidates of a leader that are played over H stages, by what the first pays (0 = all); fewer
    than all do not see an action that pays in later stages only"""
    keep: int = 3
    """candidates of a leader that are compared once more, on other seeds"""
    seeds: int = 5
    """fresh repetitions on which the best candidate meets the learned action"""
    leaders: int = 0
    """leaders tested, drawn by chance (0 = all)"""
    off_path: int = 3
    """deviations of leaders, drawn by chance, after which the follower's answer is tested too"""
    tolerance: float = 0.02
    """largest regret of an equilibrium, as a share of what the player gets in a stage"""
    negligible: float = 0.001
    """regret, as such a share, below which nothing is called significant"""
    batch: int = 8
    """deviations played side by side"""

    @property
    def weight(self) -> float:
        """Σ γ^h over the horizon: what a payoff of 1 in every stage is worth."""
        return sum(self.gamma**stage for stage in range(self.horizon))

    def __post_init__(self) -> None:
        for name in ("grid", "horizon", "screen_seeds", "keep", "seeds", "batch"):
            at_least(f"certificate.{name}", getattr(self, name), 1)
        for name in ("shortlist", "leaders", "off_path"):
            at_least(f"certificate.{name}", getattr(self, name), 0)
        if not 0.0 <= self.gamma <= 1.0:
            raise UserError(f"'certificate.gamma' must lie between 0 and 1, not {self.gamma}")
        if not 0.0 <= self.negligible <= self.tolerance:
            raise UserError(
                f"'certificate.negligible' must lie between 0 and the tolerance, {self.tolerance}, "
                f"not {self.negligible}"
            )
