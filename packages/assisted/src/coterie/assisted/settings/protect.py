"""What an organisation does to residuals and outputs before they leave it. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import at_least, between


@dataclass(frozen=True)
class ProtectSettings:
    """Protections of residuals and outputs; none of them has a privacy guarantee.

    Noise with a guarantee is in the section privacy, with a public clip.
    """

    residuals: Literal["none", "dp", "ip"] = "none"
    """What is done to residuals, anew in every round: dp clips to the own quantiles and adds
    Laplace noise, ip gives the mean answer to random thresholds (both as the public code; what ε
    would need, a clip that does not depend on the data, dp has not)."""
    alpha: float = 10.0
    """Of dp: range of the clip over the scale of the noise."""
    thresholds: int = 10
    """Of ip: random thresholds for each residual."""
    own: Literal["clean", "protected"] | None = None
    """Which of its own residuals an organisation fits: as they are, or as it sent them; default is
    that of the reading."""
    sum: bool = False
    """Outputs leave behind masks that cancel in their sum, so that an organisation learns the sum
    of its peers' outputs and the server nothing of them; needs constant weights."""

    def __post_init__(self) -> None:
        between("protect.alpha", self.alpha, 0, float("inf"))
        at_least("protect.thresholds", self.thresholds, 1)
        idle = {
            "alpha": self.alpha != ProtectSettings.alpha and self.residuals != "dp",
            "thresholds": self.thresholds != ProtectSettings.thresholds and self.residuals != "ip",
            "own": self.own is not None and self.residuals == "none",
        }
        for name, changed in idle.items():
            if changed:
                raise UserError(
                    f"'protect.{name}' has no effect with protect.residuals {self.residuals}: "
                    "leave it out, or choose another protection of residuals"
                )

    @property
    def name(self) -> str:
        """What is done to residuals, as the public code names it.

        Example:
            >>> ProtectSettings("dp", alpha=2.5).name, ProtectSettings().name
            ('dp-2.5', 'none')
        """
        match self.residuals:
            case "dp":
                return f"dp-{self.alpha:g}"
            case "ip":
                return f"ip-{self.thresholds}"
            case _:
                return "none"
