"""Settings of MTAL and the methods it is compared with. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.sections import (
    DataSettings,
    PrivacySettings,
    at_least,
    between,
    each_at_least,
    each_positive,
)

# Which ratings, and how organisations share them out. Torch-free.

Feedback = Literal["explicit", "implicit"]
GENRES = 18
"""Number of MovieLens genres, each a domain of the partition genre."""


@dataclass(frozen=True)
class DomainSettings(DataSettings):
    """Ratings, and who holds which part of them."""

    min_interactions: int | None = 0
    """k of the k-core filter; 0 keeps all ratings."""
    feedback: Feedback = "explicit"
    """explicit: ratings are predicted; implicit: whether a rating is above the threshold."""
    threshold: float = 3.5
    """Of implicit feedback: a rating above it is positive; in the reading released, one that
    equals it as well."""
    align: Literal["user", "item"] = "user"
    """What organisations have in common. Users: each holds some of the items. Items: each holds
    some of the users."""
    domains: Literal["uniform", "genre", "source"] = "genre"
    """Who holds what: uniform draws equal parts; genre gives each item to one of its genres;
    source takes the domains that the data themselves have."""
    count: int | None = None
    """K of the partition uniform; default is 8."""
    common: float = 1.0
    """Share of the users (or items) that all organisations have in common; the others are known to
    each under a name of its own."""
    scale: tuple[float, float] | None = None
    """Lowest and highest rating that there may be, as [1,5]; default is any."""
    side: bool = False
    """Whether organisations use profiles of users and genres of items."""
    test: float = 0.1
    """Share of the ratings that are held out for the test."""
    valid: float = 0.1
    """Share of the ratings that choices are made by."""
    split: int | None = None
    """Seed of the split into parts; default is that of the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("data.count", self.count, 2)
        at_least("data.common", self.common, 0)
        between("data.common", self.common, -1, 1)
        between("data.test", self.test, 0, 0.5)
        at_least("data.valid", self.valid, 0)
        if self.scale is not None and not self.scale[0] < self.scale[1]:
            raise UserError(f"'data.scale' must be lowest and highest rating, not {self.scale}")
        between("data.valid", self.valid, -1, 0.5)
        if self.count is not None and self.domains != "uniform":
            raise UserError(
                f"'data.count' has no effect with the partition {self.domains}: leave it out, or "
                "set data.domains uniform"
            )
        if self.align == "item" and self.domains != "uniform":
            raise UserError(
                f"'data.domains' {self.domains} shares out items, so organisations have users in "
                "common: set data.align user, or data.domains uniform"
            )

    @property
    def unread(self) -> dict[str, str]:
        """Roles of columns that have no effect: cells are drawn, whatever their order."""
        drawn = "data.test and data.valid draw the cells that are held out"
        found = {"split": drawn, "time": drawn, "order": drawn}
        if self.domains != "genre" and not self.side:
            found["genres"] = f"data.domains is {self.domains} and data.side is off"
        return found

    @property
    def n_domains(self) -> int:
        """K, where it does not depend on the data."""
        return self.count or 8


# What an organisation does to residuals and outputs before they leave it. Torch-free.

FEWEST = 3
"""Organisations of a sum: of two, the sum of one's peers is what its only peer sent."""
TOO_FEW = (
    f"'protect.sum' needs {FEWEST} organisations or more: of two, the sum of one's peers is what "
    "its only peer sent, so leave protect.sum out"
)
RESIDUAL_STEP = "residual"


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
        if method != "mtal" and self != ProtectSettings():
            raise UserError(
                f"the section 'protect' has no effect with the method {method}, where nothing is "
                "exchanged: leave it out"
            )
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


Method = Literal["mtal", "alone", "joint"]
UNTRAINED = ("base", "bias", "rate")
"""Models in closed form: they need one round."""
Rule = Literal["constant", "optimal", "lbfgs"]
EtaRule = Literal["constant", "optimal", "lbfgs", "validation"]


@dataclass(frozen=True)
class ModelSettings:
    """The network of an organisation (section 3.2, Table 5)."""

    name: Literal["aae", "mf", "mlp", "ncf", "base", "bias", "rate"] = "aae"
    """aae is MTAL's; the methods alone and joint take the others too. Without training: base is the
    mean of a column (of implicit feedback, or with start bias, what start says), bias adds
    deviations of row and column to the mean, rate is the smoothed share of positives of a
    column."""
    hidden: int = 256
    """Width of the hidden layers of encoder and decoder."""
    code: int = 128
    """Width d of the code between them; of mf, mlp and ncf the length of the vectors, whose tower
    has layers of d/2 and d/4."""
    dropout: float = 0.5
    """Share of the code that is dropped in training."""
    biases: Literal["additive", "broadcast"] | None = None
    """Of mf: biases of row and column are added to the product, or to every coordinate of the two
    vectors before it (the public code); default is that of the reading."""
    inputs: Literal["raw", "centred"] = "raw"
    """What the encoder reads: ratings, or what they are above the mean of their column."""
    sizes: dict[str, str] | None = None
    """Widths of single organisations' layer and code, as Drama=64-32, where they differ."""

    def __post_init__(self) -> None:
        each_at_least(self, 1, "hidden", "code", prefix="model.")
        for name, widths in (self.sizes or {}).items():
            if not re.fullmatch(r"[1-9]\d*-[1-9]\d*", widths):
                raise UserError(f"'model.sizes' of {name} must be as 64-32, not {widths!r}")
        at_least("model.dropout", self.dropout, 0)
        between("model.dropout", self.dropout, -1, 0.95)

    def widths(self, name: str) -> tuple[int, int]:
        """Widths of layer and code of an organisation."""
        own = (self.sizes or {}).get(name)
        if own is None:
            return self.hidden, self.code
        layer, code = own.split("-")
        return int(layer), int(code)


@dataclass(frozen=True)
class TrainSettings:
    """Local training, of a new model in every round of MTAL (Table 6)."""

    epochs: int = 20
    """Epochs over an organisation's rows in a round."""
    batch_rows: int = 100
    """Users (or items, if these are aligned) of a step, with all their cells."""
    lr: float = 1e-3
    """Learning rate of Adam."""
    weight_decay: float = 5e-4
    """L2 pull on all parameters."""
    clip: float = 1.0
    """Largest norm of a gradient."""
    hide: float = 0.0
    """Share of its own ratings that an organisation hides from the encoder at each step."""
    own_targets: Literal["all", "hidden", "none"] = "all"
    """Which of its own residuals an organisation fits: hidden ones are those whose rating the
    encoder does not see in that step."""

    def __post_init__(self) -> None:
        each_at_least(self, 1, "epochs", "batch_rows", prefix="train.")
        each_positive(self, "lr", "clip", prefix="train.")
        at_least("train.weight_decay", self.weight_decay, 0)
        at_least("train.hide", self.hide, 0)
        between("train.hide", self.hide, -1, 0.95)
        if self.own_targets == "hidden" and not self.hide:
            raise UserError("'train.own_targets' hidden needs hidden ratings: set train.hide")


@dataclass(frozen=True)
class AssistSettings:
    """What an organisation makes of its peers' outputs (Eq. 6 to 8)."""

    eta: float = 0.3
    """η: gradient assisted learning rate, and where the search for a better one begins."""
    eta_rule: EtaRule = "constant"
    """constant; optimal: the η of the lowest training loss, in closed form or by Newton's method;
    lbfgs: the same by L-BFGS steps, as the public code; validation: the η of the lowest loss at the
    organisation's own validation cells, which it has not fitted (ours)."""
    weights: Rule = "constant"
    """w, gradient assistance weights: constant is 1/K each; optimal minimises the training loss on
    the simplex; lbfgs takes steps on the logits of a softmax, as the public code."""
    own: Literal["use", "leave-out"] = "use"
    """Whether an organisation's own fit counts beside those of its peers."""
    lbfgs_lr: float = 1.0
    """Step size of L-BFGS."""

    def __post_init__(self) -> None:
        each_positive(self, "eta", "lbfgs_lr", prefix="assist.")


@dataclass(frozen=True)
class Settings(BaseSettings):
    """One run of assisted learning between organisations."""

    method: Method = "mtal"
    """mtal; alone: every organisation for itself; joint: one that holds all data."""
    rounds: int = 10
    """T: assistance rounds; of the other methods, rounds of train.epochs epochs each."""
    patience: int = 1000
    """Rounds without a better validation before the run ends."""
    data: DomainSettings = field(default_factory=DomainSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    assist: AssistSettings = field(default_factory=AssistSettings)
    protect: ProtectSettings = field(default_factory=ProtectSettings)
    objectives: dict[str, str] | None = None
    """Loss of single organisations, as Drama=huber, where it is not that of the feedback: squared,
    logistic or huber."""
    start: Literal["mean", "logit", "smoothed", "bias"] | None = None
    """F⁰, the base model. Of ratings the mean of a column; of implicit feedback the share of
    positives itself, its logit, or the logit of the smoothed share (s+1)/(n+2); default is that of
    the reading. bias: of both, with the deviations of an organisation's own rows (ours)."""
    evaluation: Literal["local", "pooled"] | None = None
    """local, the default of the reading recommended: organisations measure themselves, so a ranking
    is of what one of them holds; pooled: held-out ratings and their scores are sent to whoever runs
    the experiment, who ranks over all organisations as the paper does. For comparisons on public
    data only."""
    compare: bool | None = None
    """At the end of a run of mtal, train joint and separate models too, for mtal.png; default is on
    the built-in sample alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("patience", self.patience, 1)
        if self.method == "mtal" and self.model.name != "aae":
            raise UserError(
                f"'model.name' {self.model.name} is for the methods alone and joint: MTAL trains "
                "assisted autoencoders (section 3.3, 'Why AutoEncoders?')"
            )
        self.protect.check(self.method, self.assist.weights, self.data, self.privacy)
        self._check_apart()
        held = self.reading != "released" and self.data.valid
        if self.method == "mtal" and self.assist.eta_rule == "validation" and not held:
            raise UserError(
                "'assist.eta_rule' validation needs cells that are not those of the test: set "
                "data.valid above 0, and a reading other than released"
            )

    def _check_apart(self) -> None:
        """Refuse what the methods without exchange cannot do."""
        model, feedback = self.model.name, self.data.feedback
        if model == "rate" and feedback == "explicit":
            raise UserError(
                "'model.name' rate is a share of positives: with data.feedback explicit choose "
                "bias, or base"
            )
        if self.method != "mtal" and self.train.own_targets == "none":
            raise UserError(
                f"'train.own_targets' none leaves the method {self.method} nothing to fit: choose "
                "all or hidden"
            )

    @property
    def compares(self) -> bool:
        """Whether a run of MTAL is drawn beside joint and separate models."""
        return self.data.name == "sample" if self.compare is None else self.compare
