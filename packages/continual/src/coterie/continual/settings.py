"""Settings of federated continual recommendation. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.core.errors import UserError
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.schema import filled
from coterie.core.settings.sections import GrowingData, ValidationSettings, at_least, between

Method = Literal[
    "ft",
    "reg",
    "kd",
    "rlp2",
    "spp",
    "f3crec",
    "f3crec-wo-cc",
    "f3crec-wo-arm",
    "f3crec-wo-sc",
    "f3crec-wo-itm",
]
DISTILLING = ("kd", "f3crec", "f3crec-wo-arm", "f3crec-wo-sc", "f3crec-wo-itm")
"""Methods that distil a list of remembered items."""
BackboneName = Literal["fedmf", "fedncf", "pfedrec"]


@dataclass(frozen=True)
class ModelSettings:
    """The backbone and its local training."""

    name: BackboneName = "fedmf"
    """Backbone: FedMF, FedNCF (one linear layer, as F³CRec has it) or PFedRec."""
    dim: int = 32
    """Embedding size d (section 5.1)."""
    lr: float | None = None
    """Learning rate η of the private parameters (of the head for FedNCF and PFedRec); default 1.0
    for FedMF (public code), 0.1 for the others (upper end of the paper's range)."""
    lr_eta: float = 170.0
    """Factor on η for FedNCF's user vector, and for items of FedNCF and PFedRec (public code)."""
    item_lr_scale: Literal["num_items", "one"] = "num_items"
    """Multiply the item learning rate by the number of items, which makes up for the mean over
    clients that never touched an item (public code), or by one."""
    batch_size: int = 512
    """Samples in a local batch (section 5.1)."""
    negatives: int = 4
    """Sampled negatives for each positive, drawn afresh every round (public code)."""
    epochs: int = 1
    """Local epochs E in a round (section 5.1)."""
    init_std: float = 0.01
    """Standard deviation of fresh embeddings (public code)."""

    def __post_init__(self) -> None:
        for name in ("dim", "batch_size", "epochs"):
            at_least(f"model.{name}", getattr(self, name), 1)
        for name in ("negatives", "lr", "lr_eta", "init_std"):
            at_least(f"model.{name}", getattr(self, name), 0)


@dataclass(frozen=True)
class ReplaySettings:
    """Adaptive replay memory on the client (section 4.2); KD uses all but epsilon and lambda_kd."""

    top_n: int = 30
    """N, length of the list S_u of remembered items (Eq. 1)."""
    epsilon: float = 0.006
    """ε, how fast the memory shrinks with the preference shift (Eq. 3)."""
    lambda_kd: float = 0.1
    """λ_KD, weight of distillation (Eq. 6)."""
    reduction: Literal["mean", "sum"] | None = None
    """Mean (public code) or sum (Eq. 5 as printed) over the replay; default: the reading's."""
    sign: Literal["minus", "printed"] | None = None
    """Cross entropy with its minus sign, or Eq. 5 as printed, without; default: the reading's."""
    remember: Literal["block-start", "last-seen"] | None = None
    """When S_u is listed: from the parameters at the start of the block (section 4.2.1), or at the
    end of the last block the user took part in, with scores of the newest table (public code);
    default: the reading's."""
    use: Literal["distil", "leave-out", "both"] = "distil"
    """What the remembered list is used for, by any method: to be distilled, if the method does
    (the paper); as a list of items that are not recommended again; or for both."""
    leave_out_n: int = 30
    """How many of a block's train items are noted to be left out, those that rank highest."""

    def __post_init__(self) -> None:
        at_least("replay.top_n", self.top_n, 1)
        at_least("replay.leave_out_n", self.leave_out_n, 1)
        at_least("replay.epsilon", self.epsilon, 0)
        at_least("replay.lambda_kd", self.lambda_kd, 0)


@dataclass(frozen=True)
class TemporalMeanSettings:
    """Item-wise temporal mean on the server (section 4.3)."""

    beta: float = 0.9
    """β, largest weight of the previous block's item (Eq. 9)."""

    def __post_init__(self) -> None:
        at_least("temporal_mean.beta", self.beta, 0)
        if self.beta > 1:
            raise UserError(f"'temporal_mean.beta' must be at most 1, not {self.beta:g}")


@dataclass(frozen=True)
class KDSettings:
    """The KD baseline: distillation on the whole list of remembered items, see ``replay``."""

    strength: float = 0.1
    """λ_KD, weight of distillation."""

    def __post_init__(self) -> None:
        at_least("kd.strength", self.strength, 0)


@dataclass(frozen=True)
class RegSettings:
    """The Reg baseline: a squared pull towards the previous block's parameters."""

    strength: float = 0.1
    """λ, weight of the pull."""
    reduction: Literal["mean", "sum"] = "mean"
    """Over the entries of a table; `sum` needs a very small λ with item steps of η|I|."""

    def __post_init__(self) -> None:
        at_least("reg.strength", self.strength, 0)


@dataclass(frozen=True)
class RLP2Settings:
    """The RLP2 baseline: ReLoop2's error memory (Zhu et al., KDD 2023), one for each user."""

    neighbours: int = 20
    """K, memory samples that correct a prediction."""
    temperature: float = 0.1
    """τ of the attention over neighbours."""
    strength: float = 0.3
    """λ, weight of the correction."""
    gamma: float = 1.0
    """γ: 1 uses the label error, 0 the neighbours' own error."""
    threshold: float = 0.0
    """Keep only samples whose error |y - b| exceeds this."""
    capacity: int = 256
    """Samples in a user's memory; the oldest leave first."""

    def __post_init__(self) -> None:
        at_least("rlp2.neighbours", self.neighbours, 1)
        at_least("rlp2.capacity", self.capacity, 2)
        at_least("rlp2.strength", self.strength, 0)
        between("rlp2.temperature", self.temperature, 0, float("inf"))


@dataclass(frozen=True)
class SPPSettings:
    """The SPP baseline: stability and plasticity proxies (Lee et al., KDD 2024)."""

    slow: float = 0.9
    """w_s, momentum of the stability proxy."""
    fast: float = 0.1
    """w_p, momentum of the plasticity proxy."""
    epsilon: float = 1e-4
    """ε, sharpness of the sampling by rank discrepancy."""
    horizon: int = 100
    """A: only items a proxy ranks above this are replayed."""
    n_slow: int = 5
    """Items replayed from the stability proxy."""
    n_fast: int = 5
    """Items replayed from the plasticity proxy."""
    strength: float = 0.5
    """λ_r, weight of the replay; it fades as exp(-round / fade)."""
    fade: float = 10.0
    """Rounds of a block in which the replay's weight falls to 1/e."""
    refresh: int = 5
    """Rounds between two draws of the replayed items."""

    def __post_init__(self) -> None:
        for name in ("n_slow", "n_fast", "strength", "epsilon"):
            at_least(f"spp.{name}", getattr(self, name), 0)
        between("spp.fade", self.fade, 0, float("inf"))
        at_least("spp.horizon", self.horizon, 1)
        at_least("spp.refresh", self.refresh, 1)


@dataclass(frozen=True)
class StreamSettings(GrowingData):
    """The data stream."""

    fractions: tuple[float, ...] = (0.6, 0.4 / 3, 0.4 / 3)
    """Shares of all blocks but the last, in time (section 5.1), of the data without 'more'."""
    base_order: Literal["random", "chronological"] = "random"
    """How a user's items of the base block are split 80/10/10."""
    block_order: Literal["random", "chronological"] | None = None
    """The same for later blocks: random in the paper, chronological in the public code; default:
    the reading's."""
    ties: Literal["random", "file"] | None = None
    """Order of a user's items of the same time in a chronological split: random, or as in the file
    (public code), which is biased if the file is sorted by item; default: the reading's."""
    split_seed: int | None = None
    """Seed of random splits; None takes the run's seed."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks: those of the data, and one for each file that was added."""
        return len(self.fractions) + 1 + len(self.more)

    @property
    def unread(self) -> dict[str, str]:
        """Roles of columns that have no effect: F³CRec splits each block of time itself."""
        return {
            "split": "blocks are cut by time, and each is split by data.base_order and block_order",
            "genres": "only likes and their times are",
        }


@dataclass(frozen=True)
class Settings(BaseSettings):
    """One run of federated continual recommendation."""

    method: Method = "f3crec"
    """Continual-learning method, or an ablation of F³CRec (Tables 3 and 6)."""
    rounds: int = 100
    """Most communication rounds R in a block."""
    patience: int = 30
    """Rounds without a better validation NDCG@20 before a block ends (public code)."""
    participation: float = 1.0
    """Share of the block's clients drawn in each round (Algorithm 2, line 10)."""
    carry: Literal["best", "last"] | None = None
    """Which round's parameters go on to the next block; default: the reading's."""
    restart_private: bool | None = None
    """Draw private parameters anew at the start of every block, as the public code does for FedNCF
    and PFedRec; default: the reading's."""
    server_lr: float = 1.0
    """Server learning rate of the blocks after the first, Q_g += server_lr · mean of the changes;
    the paper's is 1."""
    adapt_epochs: int = 50
    """Local epochs by which a new user's private parameters are fitted when serving."""
    top_k: int = 20
    """k of NDCG@k and Recall@k."""
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    temporal_mean: TemporalMeanSettings = field(default_factory=TemporalMeanSettings)
    kd: KDSettings = field(default_factory=KDSettings)
    reg: RegSettings = field(default_factory=RegSettings)
    rlp2: RLP2Settings = field(default_factory=RLP2Settings)
    spp: SPPSettings = field(default_factory=SPPSettings)
    data: StreamSettings = field(default_factory=StreamSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("patience", "top_k"):
            at_least(name, getattr(self, name), 1)
        at_least("adapt_epochs", self.adapt_epochs, 0)
        at_least("server_lr", self.server_lr, 0)
        between("participation", self.participation, 0, 1)

    @property
    def distils(self) -> bool:
        """Whether the method's remembered list, if it has one, is distilled."""
        return self.replay.use != "leave-out"

    @property
    def leaves_out(self) -> bool:
        """Whether items that are remembered are not recommended again."""
        return self.replay.use in ("leave-out", "both")


# The three readings of the paper: which of its open or contradictory choices a run makes.

DEFAULT_LR = {"fedmf": 1.0, "fedncf": 0.1, "pfedrec": 0.1}


def choices(settings: Settings) -> dict[str, Any]:
    """Give the choices of ``settings.reading``, by name or by section and name.

    - recommended: the best round is carried on, distillation has its minus sign and is a mean,
      later blocks are split in time, so nothing is predicted from its own future, and ties
      by chance, so the order of the file tells nothing.
    - literal: Eq. 5 as printed (a sum, no minus sign), later blocks split at random (section 5.1).
    - released: as the public code runs: FedMF carries the last round while teacher and old table
      are the best round's; FedNCF and PFedRec draw private parameters anew in every block; users
      keep the list of the last block they took part in; equal times keep the order of the file.
    """
    fedmf, literal = settings.model.name == "fedmf", settings.reading == "literal"
    released = settings.reading == "released"
    return {
        "carry": "last" if released and fedmf else "best",
        "restart_private": released and not fedmf,
        "replay": {
            "reduction": "sum" if literal else "mean",
            "sign": "printed" if literal else "minus",
            "remember": "last-seen" if released else "block-start",
        },
        "data": {
            "block_order": "random" if literal else "chronological",
            "ties": "file" if released else "random",
        },
    }


def resolve(settings: Settings) -> Settings:
    """Fill every open choice (None) with that of the reading; a choice the user made stays.

    The learning rate, which has a default for each backbone, is filled in too.

    Example:
        >>> resolve(Settings(reading="released")).carry
        'last'
        >>> resolve(Settings(reading="released", carry="best")).carry
        'best'
    """
    lr = DEFAULT_LR[settings.model.name]
    return filled(settings, {"model": {"lr": lr}} | choices(settings))
