"""Settings of the methods for any module. Torch-free; docstrings are ``--help`` texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from coterie.core.agents.settings import DDPGSettings
from coterie.core.errors import UserError
from coterie.core.methods.settings.fedavg import (
    Checked,
    FedAvgSettings,
    finite,
    finite_positive,
    must_keep_models,
    steady,
)
from coterie.core.settings.sections import at_least, between, each_at_least, each_positive


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


# Settings of methods against the drift of clients. Torch-free; docstrings are ``--help`` texts.


@dataclass(frozen=True)
class ScaffoldOptions(Checked):
    """SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II); symbols as there.

    The paper's box weighs all clients alike: `weighting` "equal". With "samples" the changes of the
    model and the control variates are weighted by n_i alike, so that both name one objective.
    """

    lr_g: float = 1.0
    """η_g: step size of the server; `lr` is η_l."""

    def __post_init__(self) -> None:
        super().__post_init__()
        finite_positive(self, "lr_g")


@dataclass(frozen=True)
class ScaffoldSettings(ScaffoldOptions, FedAvgSettings):
    """SCAFFOLD with the settings that it shares with FedAvg."""

    plain: ClassVar[str] = "SCAFFOLD"


@dataclass(frozen=True)
class FedDynOptions(Checked):
    """FedDyn (Acar et al., ICLR 2021, Algorithm 1); symbols as there.

    Clients are always averaged alike. `weighting` says by what their losses are weighted: "equal",
    the paper's box, gives every client the same α; "samples", the authors' code and the default
    here, gives client i α / weight_i, where weight_i is n_i divided by the mean of all clients, and
    so minimises what FedAvg does.
    """

    alpha: float = 0.01
    """α: strength of the dynamic regularizer; the authors use 0.001 to 0.1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        finite_positive(self, "alpha")


@dataclass(frozen=True)
class FedDynSettings(FedDynOptions, FedAvgSettings):
    """FedDyn with the settings that it shares with FedAvg."""

    plain: ClassVar[str] = "FedDyn"

    def __post_init__(self) -> None:
        super().__post_init__()
        steady("alpha", self.alpha, "lr", self.lr)


# Settings of the methods that give each client a model of its own. Torch-free.


@dataclass(frozen=True)
class FedALAOptions(Checked):
    """FedALA (Zhang et al., AAAI 2023, Algorithm 1); symbols as there."""

    eta: float = 1.0
    """η: step with which a client learns the weights of its aggregation."""
    s: float = 0.8
    """s: share of a client's samples to learn these weights on, in (0, 1]."""
    p: int = 1
    """p: how many of the last layers are aggregated by learned weights (all where there are fewer);
    weight and bias of a module are one layer."""
    threshold: float = 0.1
    """The first time, learn until the losses of the last passes have a smaller standard deviation
    than this."""
    window: int = 10
    """How many passes are looked at for that; above `max_passes`, all of these are made."""
    max_passes: int = 100
    """Most passes of the first time; later there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        finite_positive(self, "eta")
        between("s", self.s, 0, 1)
        each_positive(self, "threshold")
        each_at_least(self, 2, "window")
        each_at_least(self, 1, "p", "max_passes")


@dataclass(frozen=True)
class FedALASettings(FedALAOptions, FedAvgSettings):
    """FedALA with the settings that it shares with FedAvg."""

    plain: ClassVar[str] = "FedALA"

    def __post_init__(self) -> None:
        super().__post_init__()
        must_keep_models("FedALA", self.keep_models)


@dataclass(frozen=True)
class FedRODOptions(Checked):
    """Fed-ROD with linear personal heads (Chen and Chao, ICLR 2022); symbols as there."""

    gamma: float = 1.0
    """γ: power of the numbers of samples N_{m,c} of the classes in the balanced softmax; 0 makes it
    the plain one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        each_at_least(self, 0, "gamma")
        finite(self, "gamma")


@dataclass(frozen=True)
class FedRODSettings(FedRODOptions, FedAvgSettings):
    """Fed-ROD with the settings that it shares with FedAvg."""

    plain: ClassVar[str] = "Fed-ROD"


@dataclass(frozen=True)
class FedReconOptions(Checked):
    """FedRECON (Singhal et al., NeurIPS 2021, Algorithm 1).

    The general settings are those of the base: lr is η_c, epochs and batch_size give k_u.
    """

    support: float = 0.5
    """Share of a client's samples that its head is reconstructed on; the rest, the query, trains
    the base. In (0, 1)."""
    recon_lr: float = 0.1
    """η_r: learning rate of the reconstruction."""
    recon_epochs: int = 1
    """Passes over the support set in a reconstruction, which make k_r steps."""
    server_lr: float = 1.0
    """η_s: learning rate of the server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.support < 1:
            raise UserError(f"'support' must be above 0 and below 1, not {self.support:g}")
        finite_positive(self, "recon_lr", "server_lr")
        each_at_least(self, 1, "recon_epochs")


@dataclass(frozen=True)
class FedReconSettings(FedReconOptions, FedAvgSettings):
    """FedRECON with the settings that it shares with FedAvg."""

    plain: ClassVar[str] = "FedRECON"

    head: tuple[str, ...] = ("head.*",)
    """Patterns of the names of the parameters that are the head; the others are the base."""


# Settings of Dap-FL. Torch-free; the docstring of a field is its ``--help`` text.


def _agent() -> DDPGSettings:
    return DDPGSettings(critic_lr=1e-3, actor_lr=1e-4, tau=1e-3, noise_decay=0)


@dataclass(frozen=True)
class DapFLOptions(Checked):
    """Dap-FL (Chen et al., TPDS 2023); the learning rates and τ of its agents are PAGE's.

    `lr` and `epochs` are the most that a client may choose.
    """

    lr_min: float = 1e-3
    """Least learning rate η."""
    epochs_min: int = 1
    """Least number of epochs α."""
    weighting: Literal["samples", "equal"] = "equal"
    """How clients are averaged, in place of other methods' weighting: all alike, as PAGE compares
    with it, or by their numbers of samples n_k, as the authors' public code does."""
    measure_on: Literal["valid", "train"] = "valid"
    """Samples that state and reward are measured on: those for validation, or, as in the authors'
    public code, those that the client trains on."""
    agent: DDPGSettings = field(default_factory=_agent)
    """The clients' agents."""

    def __post_init__(self) -> None:
        super().__post_init__()
        each_positive(self, "lr_min")
        each_at_least(self, 1, "epochs_min")


@dataclass(frozen=True)
class DapFLSettings(DapFLOptions, FedAvgSettings):
    """Dap-FL with the settings that it shares with FedAvg."""

    plain: ClassVar[str] = "Dap-FL"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("lr_min", self.lr), ("epochs_min", self.epochs)):
            least = getattr(self, name)
            if least > most:
                raise UserError(
                    f"'{name}' {least:g} is above the most, '{name[:-4]}' {most:g}: lower it"
                )


# Settings of local and central training, the bounds of federated methods. Torch-free.


@dataclass(frozen=True)
class LocalSettings(FedAvgSettings):
    """Every client alone; the general settings are those of FedAvg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        must_keep_models("local training", self.keep_models)
        _nothing_shared("local training", self)


@dataclass(frozen=True)
class CentralOptions(Checked):
    """Central training, the upper bound: all training samples in one place."""

    epochs: int = 1
    """Passes over all samples in a round, one batch after the other, in place of those of a client:
    N clients that make a pass at once take N times the steps of one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("epochs", self.epochs, 1)


@dataclass(frozen=True)
class CentralSettings(CentralOptions, FedAvgSettings):
    """Central training with the settings that it shares with FedAvg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _nothing_shared("central training", self)


def _nothing_shared(method: str, settings: FedAvgSettings) -> None:
    if settings.share:
        raise UserError(f"'share' has no effect in {method}, where no model travels: leave it out")
