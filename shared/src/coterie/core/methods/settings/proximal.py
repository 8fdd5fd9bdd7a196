"""Settings of methods that hold clients' models near others. Torch-free; docstrings are help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.errors import UserError
from coterie.core.methods.settings.fedavg import (
    Checked,
    FedAvgSettings,
    finite,
    finite_positive,
    steady,
)
from coterie.core.settings.sections import each_at_least


@dataclass(frozen=True)
class FedProxOptions(Checked):
    """FedProx (Li et al., MLSys 2020, Algorithm 2); symbols as there."""

    mu: float = 0.01
    """μ: strength of the proximal term μ/2 ‖w - wᵗ‖²; 0 is FedAvg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        each_at_least(self, 0, "mu")
        finite(self, "mu")


@dataclass(frozen=True)
class FedProxSettings(FedProxOptions, FedAvgSettings):
    """FedProx with the settings that it shares with FedAvg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        steady("mu", self.mu, "lr", self.lr)


@dataclass(frozen=True)
class DittoOptions(Checked):
    """Ditto (Li et al., ICML 2021, Algorithm 1); symbols as there."""

    lam: float = 0.1
    """λ: how near the personal model v stays to w; 0 trains alone, much of it is FedAvg."""
    personal_epochs: int | None = None
    """s: passes over the data for v in a round; null is as many as `epochs`, those for w."""
    personal_lr: float | None = None
    """Learning rate of v; null is η, that of w."""

    def __post_init__(self) -> None:
        super().__post_init__()
        each_at_least(self, 0, "lam")
        each_at_least(self, 1, "personal_epochs")
        finite_positive(self, "personal_lr")
        finite(self, "lam")


@dataclass(frozen=True)
class DittoSettings(DittoOptions, FedAvgSettings):
    """Ditto with the settings that it shares with FedAvg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        own = self.personal_lr is not None
        steady("lam", self.lam, "personal_lr" if own else "lr", self.personal_lr or self.lr)
        if not self.keep_models:
            raise UserError("'keep_models' must be true: Ditto trains its clients' own models on")


@dataclass(frozen=True)
class PFedMeOptions(Checked):
    """PFedMe (Dinh et al., NeurIPS 2020, Algorithm 1); symbols as there.

    The paper's box weighs all clients alike, `weighting` "equal"; the authors' code "samples".
    """

    lr: float = 0.005
    """η: step size of the local model, w <- w - η λ (w - θ), in place of other methods' learning
    rate."""
    lam: float = 15.0
    """λ: how near the personal model θ stays to w."""
    inner_steps: int = 5
    """K: gradient steps towards θ on each mini-batch."""
    personal_lr: float = 0.05
    """Learning rate of those steps."""
    local_rounds: int | None = None
    """R: mini-batches of a client in a round; null is as many as `epochs` passes have."""
    beta: float = 1.0
    """β: how far the server moves to the mean of the clients, W <- (1 - β) W + β mean w_i."""

    def __post_init__(self) -> None:
        super().__post_init__()
        each_at_least(self, 1, "inner_steps", "local_rounds")
        finite_positive(self, "lam", "personal_lr", "beta")
        steady("lam", self.lam, "lr", self.lr)
        steady("lam", self.lam, "personal_lr", self.personal_lr)


@dataclass(frozen=True)
class PFedMeSettings(PFedMeOptions, FedAvgSettings):
    """Settings of pFedMe, with those that it shares with FedAvg, but for ``lr``."""

    plain: ClassVar[str] = "pFedMe"


@dataclass(frozen=True)
class FedAMPOptions(Checked):
    """FedAMP (Huang et al., AAAI 2021, Algorithm 1); symbols as there.

    Models of clients are mixed by their likeness, so `weighting` has no say.
    """

    lam: float = 1.0
    """λ: how near a client's model stays to the others; its pull is λ/(2 α_k) ‖w - u_i‖². Tune it:
    on PAGE's Synthetic .01 was best of 1, .1, .01 and .001 by validation; 1 cost 14 points."""
    alpha: float = 1.0
    """α_k: step size of the message passing, the same in all rounds; in a round in which a model's
    own weight would fall below that of another, the largest that avoids this."""
    sigma: float = 100.0
    """σ: squared distance of models over which the attention A(x) = 1 - exp(-x/σ) levels off."""
    relative: bool = False
    """Distances are measured in units of the median squared distance of two clients' models, as are
    sigma, alpha and lam, so that the pull λ/α_k has no unit. In absolute units all weights of
    others underflow where models have millions of parameters, and FedAMP is local training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        finite_positive(self, "lam", "alpha", "sigma")


@dataclass(frozen=True)
class FedAMPSettings(FedAMPOptions, FedAvgSettings):
    """FedAMP with the settings that it shares with FedAvg."""
