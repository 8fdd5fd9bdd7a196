"""Settings of LLM-based federated recommendation. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.methods.settings.any_module import FedAMPOptions
from coterie.core.methods.settings.ranking import (
    FedMFSettings,
    FedPerGNNSettings,
    LightFRSettings,
    LightGCNSettings,
    MFSettings,
)
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.sections import (
    DataSettings,
    at_least,
    between,
    each_at_least,
    each_positive,
)
from coterie.llm.backbone_settings import (
    ExpertSettings,
    GenerationSettings,
    LoraSettings,
    ModelSettings,
    PretrainSettings,
    SplitSettings,
)

Method = Literal[
    "pplr",
    "pplr-attention",
    "pplr-heating",
    "fedavg",
    "fedprox",
    "fedavg-tuned",
    "fedavg-head",
    "fedamp",
    "local",
    "central",
    "fedmf",
    "lightfr",
    "fedpergnn",
]
USER_METHODS = ("fedmf", "lightfr", "fedpergnn")
"""Without a language model: every user is a client."""
PERSONALISED = ("fedavg-tuned", "fedavg-head", "fedamp")
"""What PPLR is compared with beside the paper; each client ranks with a model of its own."""


@dataclass(frozen=True)
class TrainSettings:
    """Local training of a client in a round."""

    epochs: int = 1
    """Local epochs E."""
    batch_size: int = 64
    """Examples in a step."""
    lr: float = 2e-3
    """Learning rate of Adam."""
    on_inputs: bool = True
    """Whether a backbone that writes text practises the prompt too, as the public code does, or the
    answer alone, which needs far less memory where the vocabulary is large."""
    keep_optimizer: bool = False
    """Go on with the optimizer's moments of the client's last round; the public code does not."""
    stages: int | None = None
    """Stages of fine-tuning; default: 2 for recformer, else 1. The first embeds the items anew in
    every round; the second goes on from its best round, with the item embeddings of that frozen."""
    patience_frozen: int = 3
    """Rounds of the second stage without a better validation before a run ends (public code)."""
    mu: float = 0.01
    """μ of FedProx: pull μ/2 ‖R_c - R‖² towards the adapter received; other methods have none."""

    def __post_init__(self) -> None:
        each_at_least(self, 1, "epochs", "batch_size", prefix="train.")
        between("train.lr", self.lr, 0, float("inf"))
        each_at_least(self, 1, "stages", "patience_frozen", prefix="train.")
        at_least("train.mu", self.mu, 0)


@dataclass(frozen=True)
class MixingSettings:
    """The dynamic balance strategy (section 3.1)."""

    alpha: float = 0.7
    """α, speed-related warm-up factor (Eq. 4); higher is faster."""
    beta: float = 5.0
    """β, time-related warm-up factor (Eq. 4); lower is faster."""
    tau: float = 0.05
    """τ, temperature of the softened losses (Eq. 4)."""
    similarity: Literal["shifted", "cosine"] | None = None
    """(cosine + 1) / 2 (public code), or the plain cosine (Eq. 3); default: the reading's."""
    similarity_on: Literal["weights", "updates"] | None = None
    """Cosine of the adapters, or of what a round changed in them; default: the reading's."""
    exponent: Literal["paper", "released"] | None = None
    """(t + 1)/β in Eq. 4, or t + 1/β as the public code computes; default: the reading's."""
    size_weighted: bool = False
    """Weight peers by their numbers of examples too; neither paper nor public code do."""

    def __post_init__(self) -> None:
        each_positive(self, "alpha", "beta", "tau", prefix="mixing.")


@dataclass(frozen=True)
class TuningSettings:
    """Of the method fedavg-tuned: what a client makes of the adapter it ranks with."""

    epochs: int = 1
    """Local epochs more, by a new optimizer; what they make is neither sent nor trained on. 0 is
    FedAvg."""

    def __post_init__(self) -> None:
        at_least("tuning.epochs", self.epochs, 0)


@dataclass(frozen=True)
class FederatedDataSettings(DataSettings):
    """The data and how they are shared out."""

    clients: int = 5
    """Number K of clients."""
    partition: Literal["k-means", "genres", "shops"] = "k-means"
    """What a client is. k-means: a cluster of users, by their vectors in a truncated SVD of the
    train matrix (the paper). genres: users by the genre, or brand where there are no genres, that
    stands out most in their train items. shops: every interaction goes to a shop by what is sold
    there, see `skew`; a user has an account, a user of its own, at every shop where it buys."""
    skew: float = 0.1
    """δ of the shops: each cluster of items, by k-means over their vectors in that SVD, is divided
    among them in ratios from a Dirichlet distribution; small: each is sold in one shop, large: all
    are sold in all. Other partitions do not read it."""
    public: float = 0.2
    """Share of users who are public: tiny backbones are pre-trained on them; they are neither
    clients nor evaluated."""
    shots: int | None = None
    """Training examples of all clients together (few-shot); default: all."""
    valid_users: int | None = None
    """Most users whom a client validates on, drawn once; default: all. Writing titles is slow."""
    max_history: int = 10
    """Newest items of a user that a backbone reads (public code)."""
    min_history: int | None = None
    """Items before the first target of a user; default: max_history, or all but one of a user who
    has fewer (public code). With 1, every item but the first is a target."""
    span: int = 10
    """History items are drawn, in order, from this many before the target, anew in every epoch;
    equal to max_history, the newest are always taken (the paper)."""
    stride: int = 1
    """A target every so many items of a user; 1 is the paper's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        each_at_least(self, 1, "clients", "max_history", "stride", prefix="data.")
        each_at_least(self, 1, "shots", "valid_users", "min_history", prefix="data.")
        at_least("data.public", self.public, 0)
        between("data.skew", self.skew, 0, float("inf"))
        if self.span < self.max_history:
            raise UserError(
                f"'data.span' {self.span} must be at least 'data.max_history' {self.max_history}"
            )


@dataclass(frozen=True)
class Settings(BaseSettings):
    """One run of LLM-based federated recommendation."""

    method: Method = "pplr"
    """PPLR, one of its halves (Figure 4), or what it is compared with (Table 1); of these, fedmf,
    lightfr and fedpergnn have no language model, and every user is a client. Beside the paper:
    fedavg-tuned trains FedAvg's adapter on before a client ranks with it, fedavg-head leaves the
    last layer, and an expert's bias, to the client, fedamp mixes adapters by their distances."""
    rounds: int = 20
    """Most communication rounds T; of each stage, where train.stages is 2 (public code)."""
    patience: int = 5
    """Rounds without a better validation Recall@10 before a run, or its first stage, ends (public
    code)."""
    participation: float = 1.0
    """Share of the clients drawn in each round; all, where training is centralised. The mean of
    FedAvg and FedProx goes to all clients, in PPLR those not drawn keep their adapters."""
    model: ModelSettings = field(default_factory=ModelSettings)
    expert: ExpertSettings = field(default_factory=ExpertSettings)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    mixing: MixingSettings = field(default_factory=MixingSettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    fedamp: FedAMPOptions = field(default_factory=FedAMPOptions)
    split: SplitSettings = field(default_factory=SplitSettings)
    fedmf: FedMFSettings = field(default_factory=FedMFSettings)
    lightfr: LightFRSettings = field(default_factory=LightFRSettings)
    fedpergnn: FedPerGNNSettings = field(default_factory=FedPerGNNSettings)
    mf: MFSettings = field(default_factory=MFSettings)
    lightgcn: LightGCNSettings = field(default_factory=LightGCNSettings)
    data: FederatedDataSettings = field(default_factory=FederatedDataSettings)

    @property
    def keeps(self) -> bool:
        """Whether a part of what a client trains, or all of it, stays with the client.

        In a split model the method local has adapters at the server, as its layers are there.
        """
        return self.method == "fedavg-head" or (self.method == "local" and self.split.k is None)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("patience", self.patience, 1)
        between("participation", self.participation, 0, 1)
        if self.split.k is not None and self.method in PERSONALISED:
            raise UserError(
                f"--method {self.method} is of whole models only: leave 'split.k' out, or choose "
                "another method"
            )
        elsewhere = self.engine.name in ("processes", "ray")
        if self.split.k is not None and not self.split.server and elsewhere:
            raise UserError(
                "clients in processes of their own reach a split model's middle over a connection "
                "only: start one by `coterie llm serve`, and name it by --split.server"
            )
