"""Settings of what is done to residuals and outputs before they leave. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.assisted.settings.data import DomainSettings
from coterie.core.errors import UserError
from coterie.core.settings.sections import PrivacySettings, at_least, between

FEWEST = 3
"""Organisations of a sum: of two, the sum of one's peers is what its only peer sent."""
TOO_FEW = (
    f"'protect.sum' needs {FEWEST} organisations or more: of two, the sum of one's peers is what "
    "its only peer sent, so leave protect.sum out"
)
RESIDUAL_STEP = "residual"
SENDING = ("mtal", "residuals")
"""Methods in which residuals leave an organisation, in the step of this name."""


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
    that of the reading. In the method residuals, whose models predict from an organisation's own
    residuals, they do so from clean ones either way."""
    centre: Literal["sender", "receiver"] = "sender"
    """Of the method residuals: who takes off the mean of a column. sender: residuals are those of
    F⁰, so a rating moves all of its column; receiver: they are those of the middle of data.scale
    (of implicit feedback of a half), so it moves its own alone, and who gets them takes off the
    mean that they have in each column (ours)."""
    sum: bool = False
    """Outputs leave behind masks that cancel in their sum, so that an organisation learns the sum
    of its peers' outputs and the server nothing of them; needs constant weights."""

    def __post_init__(self) -> None:
        between("protect.alpha", self.alpha, 0, float("inf"))
        at_least("protect.thresholds", self.thresholds, 1)
        idle = {
            "alpha": self.alpha != ProtectSettings.alpha and self.residuals != "dp",
            "thresholds": self.thresholds != ProtectSettings.thresholds and self.residuals != "ip",
        }
        for name, changed in idle.items():
            if changed:
                raise UserError(_idle(name, self.residuals))

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

    def check(
        self, method: str, weights: str, data: DomainSettings, privacy: PrivacySettings
    ) -> None:
        """Refuse what does not go together.

        Args:
            method: of the run.
            weights: how an organisation weighs its peers' outputs.
            data: who holds what.
            privacy: noise with a guarantee.

        Raises:
            UserError: naming it.
        """
        if method not in SENDING and self != ProtectSettings():
            raise UserError(
                f"the section 'protect' has no effect with the method {method}, where no residual "
                "is exchanged: leave it out"
            )
        if method != "mtal" and self.sum:
            raise UserError(
                f"'protect.sum' hides outputs, and there are none with the method {method}: leave "
                "it out"
            )
        hidden = self.residuals != "none" or (method == "residuals" and covers(privacy))
        if self.own is not None and not hidden:
            raise UserError(_idle("own", self.residuals))
        self._check_centre(method, hidden, data)
        noise = privacy.noise != "none" or privacy.clip is not None
        if noise and self.residuals != "none":
            raise UserError(
                f"'protect.residuals' {self.residuals} beside privacy.noise and privacy.clip: "
                "residuals are protected in one way only, leave one out"
            )
        if self.sum:
            _check_sum(weights, data)
            # Masked outputs are no real numbers, so neither clip nor noise would change them.
            if noise and privacy.steps != (RESIDUAL_STEP,):
                raise UserError(
                    "'protect.sum' masks outputs, so noise cannot cover them: set privacy.steps "
                    f"[{RESIDUAL_STEP}], or leave protect.sum out"
                )

    def _check_centre(self, method: str, hidden: bool, data: DomainSettings) -> None:
        """Refuse residuals of the middle of the scale where they would be ratings, or nothing."""
        if self.centre == "sender":
            return
        if method != "residuals":
            raise UserError(
                f"'protect.centre' receiver has no effect with the method {method}: leave it out, "
                "or take the method residuals"
            )
        if not hidden:
            raise UserError(
                "'protect.centre' receiver without noise would send the ratings themselves: set "
                "privacy.noise, or protect.residuals"
            )
        if data.feedback == "explicit" and data.scale is None:
            raise UserError(
                "'protect.centre' receiver needs the lowest and the highest rating that there may "
                "be, which are public: set data.scale, as [1,5]"
            )


def covers(privacy: PrivacySettings) -> bool:
    """Whether residuals are clipped or get noise by the section privacy.

    Example:
        >>> covers(PrivacySettings()), covers(PrivacySettings(clip=1.0, steps=("residual",)))
        (False, True)
    """
    changes = privacy.noise != "none" or privacy.clip is not None
    return changes and (not privacy.steps or RESIDUAL_STEP in privacy.steps)


def _idle(name: str, residuals: str) -> str:
    return (
        f"'protect.{name}' has no effect with protect.residuals {residuals}: leave it out, or "
        "choose another protection of residuals"
    )


def _check_sum(weights: str, data: DomainSettings) -> None:
    if weights != "constant":
        raise UserError(
            f"'protect.sum' hides what each peer gave, by which {weights} weights are chosen: set "
            "assist.weights constant"
        )
    if data.common < 1:
        raise UserError(
            f"'protect.sum' needs all rows in common, not a share of {data.common:g}: peers who "
            "know different rows have no masks that cancel, so set data.common 1"
        )
    if data.domains == "uniform" and data.n_domains < FEWEST:
        raise UserError(TOO_FEW)
