"""Settings of MTAL, of the methods beside it and of those it is compared with. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from coterie.assisted.settings.data import DomainSettings
from coterie.assisted.settings.protection import ProtectSettings
from coterie.core.errors import UserError
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.sections import at_least, between, each_at_least, each_positive

Method = Literal["mtal", "alone", "joint", "residuals", "sums"]
EXCHANGING = ("mtal", "residuals", "sums")
"""Methods in which organisations send each other something, and so need rows in common."""
UNTRAINED = ("base", "bias", "rate")
"""Models in closed form: they need one round."""
OF_SAMPLES = ("autorec", "gaussian", "blend")
"""Models whose samples are items (or users), of all residuals at hand (ours)."""
Rule = Literal["constant", "optimal", "lbfgs"]
EtaRule = Literal["constant", "optimal", "lbfgs", "validation"]


@dataclass(frozen=True)
class ModelSettings:
    """The network of an organisation (section 3.2, Table 5)."""

    name: Literal[
        "aae", "mf", "mlp", "ncf", "base", "bias", "rate", "autorec", "gaussian", "blend"
    ] = "aae"
    """aae is MTAL's; the methods alone and joint take the others too. Without training: base is the
    mean of a column (of implicit feedback, or with start bias, what start says), bias adds
    deviations of row and column to the mean, rate is the smoothed share of positives of a
    column. Of ours, for all methods but mtal, samples are items with the residuals of all
    users at hand (or users, see samples): autorec is an autoencoder of these, gaussian a normal
    distribution of them, blend both."""
    samples: Literal["items", "users", "both"] = "items"
    """Of autorec, gaussian and blend: what a sample is; both: a model of each kind."""
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
    members: int = 5
    """Of autorec and blend: autoencoders whose outputs are averaged."""
    rank: int = 50
    """Of gaussian and blend: directions in which coordinates vary together."""
    noise: float = 0.85
    """Of gaussian and blend: variance of a residual around what its sample has of the distribution,
    in units of the residuals' mean square."""
    sizes: dict[str, str] | None = None
    """Widths of single organisations' layer and code, as Drama=64-32, where they differ."""

    def __post_init__(self) -> None:
        each_at_least(self, 1, "hidden", "code", "members", "rank", prefix="model.")
        each_positive(self, "noise", prefix="model.")
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
    """Of aae: which of its own residuals an organisation fits; hidden ones are those whose rating
    the encoder does not see in that step."""

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
    """mtal; alone: every organisation for itself; joint: one that holds all data. Of ours, with
    models of samples: residuals, which are exchanged once, and each trains on what it was sent;
    sums, by which a server moves one model, while residuals stay."""
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
    start: Literal["mean", "logit", "smoothed", "constant", "bias"] | None = None
    """F⁰, the base model. Of ratings the mean of a column; of implicit feedback the share of
    positives itself, its logit, or the logit of the smoothed share (s+1)/(n+2); default is that of
    the reading. constant: as smoothed, and of ratings the mean of all of them (ours). bias: of
    both, with the deviations of an organisation's own rows (ours)."""
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
        if self.protect.centre == "receiver" and self.start in ("constant", "bias"):
            raise UserError(
                "'protect.centre' receiver takes off the means of columns, and start "
                f"{self.start} has others: set start mean, or protect.centre sender"
            )
        self._check_apart()
        self._check_samples()
        self._check_sums()
        held = self.reading != "released" and self.data.valid
        if self.method == "mtal" and self.assist.eta_rule == "validation" and not held:
            raise UserError(
                "'assist.eta_rule' validation needs cells that are not those of the test: set "
                "data.valid above 0, and a reading other than released"
            )

    def _check_samples(self) -> None:
        """Refuse what models of samples cannot do, and other models where there must be one."""
        model, methods = self.model.name, ", ".join(OF_SAMPLES)
        if self.method in EXCHANGING and self.method != "mtal" and model not in OF_SAMPLES:
            raise UserError(
                f"the method {self.method} trains models of samples, not 'model.name' {model}: "
                f"choose {methods}"
            )
        if model in OF_SAMPLES and (self.reading == "released" or not self.data.valid):
            raise UserError(
                f"'model.name' {model} chooses its rate by cells that are not those of the test: "
                "set data.valid above 0, and a reading other than released"
            )

    def _check_sums(self) -> None:
        """Refuse what a model that all organisations share cannot be."""
        if self.method != "sums":
            return
        if self.data.common < 1:
            raise UserError(
                "the method sums needs all rows in common, not a share of "
                f"{self.data.common:g}: set data.common 1, or take the method residuals"
            )
        if not all(self.samples_are_columns.values()):
            other = "items" if self.data.align == "user" else "users"
            raise UserError(
                f"samples of the method sums are what each organisation has of its own, with "
                f"data.align {self.data.align} not {self.model.samples}: set model.samples {other}"
            )
        if self.privacy.clip_by == "entry":
            raise UserError(
                "'privacy.clip_by' entry bounds single numbers, and one rating moves all of a sum, "
                "so that no ε would follow: with the method sums set privacy.clip_by to upload"
            )
        if self.model.sizes:
            raise UserError(
                "'model.sizes' gives organisations networks of their own, and the method sums "
                "has one for all: set model.hidden and model.code"
            )

    def _check_apart(self) -> None:
        """Refuse what the methods without exchange cannot do."""
        model, feedback = self.model.name, self.data.feedback
        if model == "rate" and feedback == "explicit":
            raise UserError(
                "'model.name' rate is a share of positives: with data.feedback explicit choose "
                "bias, or base"
            )
        if self.method not in EXCHANGING and self.train.own_targets == "none":
            raise UserError(
                f"'train.own_targets' none leaves the method {self.method} nothing to fit: choose "
                "all or hidden"
            )

    @property
    def samples_are_columns(self) -> dict[str, bool]:
        """Whether samples, by what they are, are columns of an organisation's matrix, or rows."""
        kinds = ("items", "users") if self.model.samples == "both" else (self.model.samples,)
        return {kind: (kind == "items") == (self.data.align == "user") for kind in kinds}

    @property
    def compares(self) -> bool:
        """Whether a run of MTAL is drawn beside joint and separate models."""
        return self.data.name == "sample" if self.compare is None else self.compare
