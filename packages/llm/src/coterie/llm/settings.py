"""Settings of LLM-based federated recommendation. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.methods.settings.ranking import (
    FedMFSettings,
    FedPerGNNSettings,
    LightFRSettings,
    LightGCNSettings,
    MFSettings,
)
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.sections import DataSettings, at_least, between
from coterie.llm.backbones.pretrain_settings import PretrainSettings
from coterie.llm.backbones.text_settings import GenerationSettings, LoraSettings

Method = Literal[
    "pplr",
    "pplr-attention",
    "pplr-heating",
    "fedavg",
    "fedprox",
    "local",
    "central",
    "fedmf",
    "lightfr",
    "fedpergnn",
]
BackboneName = Literal["tiny-item", "tiny-text", "llama", "recformer"]


@dataclass(frozen=True)
class ModelSettings:
    """The backbone, one frozen network that all clients share."""

    name: BackboneName = "tiny-item"
    """tiny-item: a small Llama over item tokens, pre-trained in seconds on a public slice;
    tiny-text: one over titles; llama: any causal language model of Hugging Face, with BIGRec's
    prompt and grounding; recformer: a Longformer over titles, brands and categories."""
    path: str | None = None
    """Hugging Face name or folder of a llama, or file of a published RecFormer; a RecFormer without
    one is small and pre-trained on the public slice."""
    base: str = "allenai/longformer-base-4096"
    """Hugging Face name or folder of the Longformer whose shape and tokenizer a published RecFormer
    has."""
    noun: Literal["film", "game", "book", "product"] = "film"
    """What the items are called in the prompt of a llama."""
    context: int = 192
    """Most tokens that a backbone over text reads; longer histories lose their oldest items."""
    vocabulary: int = 2000
    """Most tokens of the tokenizer of a tiny backbone over text."""
    width: int = 64
    """Hidden size h of a tiny backbone."""
    layers: int = 2
    """Number N of layers of a tiny backbone."""
    heads: int = 2
    """Attention heads of a tiny backbone."""
    trained: Literal["lora", "all"] | None = None
    """What a client trains (section 3.1): low-rank adapters, or all parameters; default: all for
    tiny-item and recformer, as the paper does with RecFormer, else lora."""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "context", "vocabulary"):
            at_least(f"model.{name}", getattr(self, name), 1)
        if self.name == "llama" and self.path is None:
            raise UserError(
                "'model.path' is missing: name the llama, as --model.path meta-llama/Llama-2-7b-hf"
            )
        if self.name.startswith("tiny") and self.path is not None:
            raise UserError(
                f"'model.path' does not go with {self.name}, which is made here: leave it out, or "
                "choose --model.name llama or recformer"
            )
        if self.width % (2 * self.heads):
            raise UserError(
                f"'model.width' {self.width} must be a multiple of twice 'model.heads' {self.heads}"
            )


@dataclass(frozen=True)
class TrainSettings:
    """Local training of a client in a round."""

    epochs: int = 1
    """Local epochs E."""
    batch_size: int = 64
    """Examples in a step."""
    lr: float = 2e-3
    """Learning rate of Adam."""
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
        at_least("train.epochs", self.epochs, 1)
        at_least("train.batch_size", self.batch_size, 1)
        between("train.lr", self.lr, 0, float("inf"))
        at_least("train.stages", self.stages, 1)
        at_least("train.patience_frozen", self.patience_frozen, 1)
        at_least("train.mu", self.mu, 0)


@dataclass(frozen=True)
class SplitSettings:
    """The flexible storage strategy (section 3.2): which layers are the server's."""

    k: int | None = None
    """Layers that a client holds below the server's; it also holds the last one. Default: all
    layers are the client's."""
    server: str | None = None
    """host:port of `coterie llm serve`; default: the server's layers are in this process."""
    secret: str | None = None
    """File from which the tokens of clients and coordinator follow, written by the server."""
    ca: str | None = None
    """Certificate that the server's must follow from (PEM); without, only this machine is talked
    to."""
    cert: str | None = None
    """Certificate of the clients, where the server demands one (PEM)."""
    key: str | None = None
    """Key of that certificate."""
    wire: Literal["float32", "bfloat16"] | None = None
    """Number format of what crosses; default: the model's."""
    deadline: float = 120.0
    """Seconds in which the server must answer."""

    def __post_init__(self) -> None:
        at_least("split.k", self.k, 1)
        between("split.deadline", self.deadline, 0, float("inf"))
        if self.k is None and self.server is not None:
            raise UserError("'split.server' needs 'split.k', the number of the client's layers")


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
        for name in ("alpha", "beta", "tau"):
            between(f"mixing.{name}", getattr(self, name), 0, float("inf"))


@dataclass(frozen=True)
class FederatedDataSettings(DataSettings):
    """The data and how they are shared out."""

    clients: int = 5
    """Number K of clients: clusters of users, by k-means over their vectors in a truncated
    SVD of the train matrix."""
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
        for name in ("clients", "max_history", "stride"):
            at_least(f"data.{name}", getattr(self, name), 1)
        at_least("data.shots", self.shots, 1)
        at_least("data.valid_users", self.valid_users, 1)
        at_least("data.min_history", self.min_history, 1)
        at_least("data.public", self.public, 0)
        if self.span < self.max_history:
            raise UserError(
                f"'data.span' {self.span} must be at least 'data.max_history' {self.max_history}"
            )


@dataclass(frozen=True)
class Settings(BaseSettings):
    """One run of LLM-based federated recommendation."""

    method: Method = "pplr"
    """PPLR, one of its halves (Figure 4), or what it is compared with (Table 1); of these, fedmf,
    lightfr and fedpergnn have no language model, and every user is a client."""
    rounds: int = 20
    """Most communication rounds T; of each stage, where train.stages is 2 (public code)."""
    patience: int = 5
    """Rounds without a better validation Recall@10 before a run, or its first stage, ends (public
    code)."""
    participation: float = 1.0
    """Share of the clients drawn in each round; all, where training is centralised. The mean of
    FedAvg and FedProx goes to all clients, in PPLR those not drawn keep their adapters."""
    model: ModelSettings = field(default_factory=ModelSettings)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    mixing: MixingSettings = field(default_factory=MixingSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    fedmf: FedMFSettings = field(default_factory=FedMFSettings)
    lightfr: LightFRSettings = field(default_factory=LightFRSettings)
    fedpergnn: FedPerGNNSettings = field(default_factory=FedPerGNNSettings)
    mf: MFSettings = field(default_factory=MFSettings)
    lightgcn: LightGCNSettings = field(default_factory=LightGCNSettings)
    data: FederatedDataSettings = field(default_factory=FederatedDataSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("patience", self.patience, 1)
        between("participation", self.participation, 0, 1)
