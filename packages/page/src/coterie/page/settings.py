"""Settings of PAGE and the methods it is compared with. Torch-free."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Literal

from coterie.core.agents.settings import DDPGSettings
from coterie.core.errors import UserError
from coterie.core.methods.settings.any_module import (
    CentralOptions,
    DapFLOptions,
    DittoOptions,
    FedALAOptions,
    FedAMPOptions,
    FedDynOptions,
    FedProxOptions,
    FedReconOptions,
    FedRODOptions,
    PFedMeOptions,
    ScaffoldOptions,
)
from coterie.core.methods.settings.fedavg import BranchOptions
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.sections import NamedData, at_least, between
from coterie.page.tasks import OPTIONS, Network


@dataclass(frozen=True)
class AgentOptions:
    """An agent (DDPG); what is not set is the reading's choice."""

    hidden: tuple[int, int] | None = None
    """Units of the two hidden layers, in actor and critic."""
    init: Literal["fan_in", "fan_out"] | None = None
    """Bound of the hidden weights: 1/√inputs or, as the public code by a slip, 1/√outputs."""
    start: float | None = None
    """What every coordinate of an action is before anything is learnt, in (-1, 1)."""
    critic_lr: float | None = None
    """Learning rate of the critic (Adam)."""
    actor_lr: float | None = None
    """Learning rate of the actor (Adam)."""
    saturation: float | None = None
    """Price of the actor's output beyond ±1.5, squared; it keeps actions off the ends."""
    tau: float | None = None
    """τ: share of the networks that enters the target networks at an update."""
    gamma: float | None = None
    """γ: discount of the next round's reward; 0 is a bandit."""
    batch_size: int | None = None
    """Experiences of an update."""
    capacity: int | None = None
    """Experiences kept; the oldest gives way."""
    warm_up: int | None = None
    """First rounds, with uniformly random actions and no update."""
    updates: int | None = None
    """Updates a round."""
    noise_theta: float | None = None
    """θ of the Ornstein-Uhlenbeck noise: pull towards 0."""
    noise_sigma: float | None = None
    """σ of the Ornstein-Uhlenbeck noise; 0 is no noise after the warm-up."""
    noise_dt: float | None = None
    """Time between two rounds, for the noise."""
    noise_decay: int | None = None
    """Rounds after the warm-up over which the noise shrinks linearly; 0 = it does not shrink."""
    noise_final: float | None = None
    """Share of the noise that stays after that."""

    def __post_init__(self) -> None:
        self.ddpg()  # refuses what is out of range

    def ddpg(self) -> DDPGSettings:
        """What the agents run with; a value that is still open is that of `DDPGSettings`.

        Raises:
            UserError: a value is out of range.
        """
        return DDPGSettings(**{n: value for n, value in asdict(self).items() if value is not None})


def check_batch(section: str, agent: DDPGSettings) -> None:
    """Refuse a batch that the memory of a section's agent cannot fill, but by repetitions.

    Raises:
        UserError: it cannot.
    """
    if agent.batch_size > agent.capacity:
        raise UserError(
            f"'{section}.batch_size' {agent.batch_size} exceeds the {agent.capacity} experiences "
            f"that '{section}.capacity' keeps: choose less"
        )


# Settings of the certificate. Torch-free.

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


Method = Literal[
    "page",
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "dap-fl",
    "fedrecon",
    "pfedme",
    "ditto",
    "fedala",
    "fed-rod",
    "fedamp",
    "local",
    "central",
]
PageReading = Literal["recommended", "literal", "released", "decoupled"]
DEMONSTRATION = 40
"""Rounds of `coterie train page` by its own configuration; tables play more."""


@dataclass(frozen=True)
class TaskSettings(NamedData):
    """Which task, and how it is shared out among clients."""

    name: str = "synthetic"
    """synthetic (PAGE's own), synthetic-fedprox, cifar-100, tiny-imagenet-200 or shakespeare."""
    clients: int | None = None
    """N: number of clients; default 100 (30 for synthetic-fedprox)."""
    partition: Literal["dirichlet", "shards"] = "dirichlet"
    """How the images of a set are shared out: by Dirichlet class ratios, or in shards of few
    classes. Roles of plays are clients by themselves."""
    label_skew: float = 0.3
    """δ: concentration of the Dirichlet class ratios; smaller is more skewed."""
    quantity_skew: float = 0.0
    """σ: standard deviation of the logarithm of a client's number of samples; 0 = equal."""
    feature_skew: float = 1.0
    """β of the synthetic tasks: standard deviation of what a client adds to all its features."""
    shards: int = 2
    """Shards a client gets, with the partition shards."""
    valid: float = 0.1
    """Share of a client's training samples that choices are made by; synthetic tasks draw their
    validation samples in addition."""
    samples: int | None = None
    """Most samples that clients hold together, and most that the server holds, for small trials:
    pictures are drawn at random, of each role of a play the first are taken."""

    def __post_init__(self) -> None:
        at_least("data.clients", self.clients, 1)
        between("data.label_skew", self.label_skew, 0, math.inf)
        at_least("data.quantity_skew", self.quantity_skew, 0)
        at_least("data.feature_skew", self.feature_skew, 0)
        at_least("data.shards", self.shards, 1)
        between("data.valid", self.valid, 0, 0.5)
        at_least("data.samples", self.samples, 1)
        self._refuse_idle()

    def _refuse_idle(self) -> None:
        """Refuse a setting that was changed and has no effect."""
        skews, plan = {"label_skew", "quantity_skew"}, f"the partition {self.partition}"
        idle = dict.fromkeys(skews if self.partition == "shards" else {"shards"}, plan)
        if self.name in OPTIONS:
            all_options = set().union(*OPTIONS.values())
            idle |= dict.fromkeys(all_options - OPTIONS[self.name], f"the task {self.name}")
        for setting in fields(self):
            if setting.name in idle and getattr(self, setting.name) != setting.default:
                reason = idle[setting.name]
                raise UserError(f"'data.{setting.name}' has no effect with {reason}: leave it out")


@dataclass(frozen=True)
class ModelSettings:
    """The network."""

    name: Network | None = None
    """Default: softmax for synthetic tasks, resnet18 for pictures, char-lstm for plays."""


@dataclass(frozen=True)
class TrainSettings:
    """Local training in a round; of PAGE, what its switched-off factors are."""

    epochs: int = 20
    """Local epochs."""
    batch_size: int = 5
    """Samples in a step."""
    lr: float = 0.1
    """Learning rate of SGD."""
    weight_decay: float = 1e-5
    """L2 pull on all parameters."""
    clip: float | None = 10.0
    """Largest norm of a gradient; null clips nothing."""
    participation: float = 1.0
    """Share of the clients that are drawn for a round."""
    weighting: Literal["samples", "equal"] = "samples"
    """How the baselines average clients: by numbers of samples, or all alike."""
    evaluate_every: int = 1
    """Rounds from one evaluation to the next; round T, the last of `rounds`, is evaluated too."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "evaluate_every"):
            at_least(f"train.{name}", getattr(self, name), 1)
        at_least("train.weight_decay", self.weight_decay, 0)
        for name in ("lr", "clip"):
            between(f"train.{name}", getattr(self, name), 0, math.inf)
        between("train.participation", self.participation, 0, 1)


@dataclass(frozen=True)
class GameSettings:
    """The Stackelberg game (Definition 1): what the players may do, and what they want."""

    lr_min: float = 1e-3
    """Least learning rate η_i; the most is train.lr."""
    epochs_min: int = 1
    """Least number of epochs α_i; the most is train.epochs."""
    generality: float | None = None
    """λ of the reading decoupled: weight of the shared objective in the clients' own gradient, from
    0, FedAvg's, to 1, the default."""
    drift: Literal["dynamic", "control"] | None = None
    """How the reading decoupled corrects it: dynamic, g_i + λ (α (w - W) - h_i), FedDyn's
    regularizer and the default, or control, g_i + λ (c - c_i), SCAFFOLD's control variates."""
    alpha: float | None = None
    """α of the drift dynamic; default 0.001."""
    tune_lr: bool = True
    """Clients choose their learning rate; else it is train.lr. In the reading decoupled they choose
    their branch instead."""
    tune_epochs: bool = True
    """Clients choose their number of epochs; else it is train.epochs. In the reading decoupled they
    choose their branch instead."""
    tune_p: bool = True
    """The server chooses the weights p; else they are 1/N."""
    follower: Literal["ddpg", "best-response"] | None = None
    """How the server chooses p: by its agent, or by minimising its loss over the simplex; default
    is the reading's."""
    order: Literal["after", "before"] | None = None
    """The server answers after it has seen the clients' models, or before; default is the
    reading's."""
    utility: Literal["bounded", "inverse"] | None = None
    """Utility of a loss f: 1/(f + 0.1), which is bounded, or 1/f (Definition 1); default is the
    reading's."""
    server_utility: Literal["aggregate", "mixture"] | None = None
    """Loss that the server's utility is of: that of W(t+1) on its own samples, or Σ p_i f_i(w_i)
    (Definition 1); default is the reading's."""
    actions: Literal["whole", "clipped"] | None = None
    """Maps of actions: onto the whole ranges, or clipped as in the public code; default is the
    reading's."""
    reward_ratio: str | None = None
    """Biased variant, global:local as 10:1: all players share λ·global + (1 - λ)·local, in the
    reading released each scales its own reward. Default: everybody its own utility."""
    steps: int = 12
    """Steps of a best response."""
    evenness: float | None = None
    """What uneven weights cost in a best response, times (N Σ p_i² - 1)/2: weights that win a
    little now, on few clients, lose in later stages. 0 looks at the present stage alone. Default:
    0.02, and 0 in the reading decoupled, whose models agree more."""
    patience: int | None = None
    """Length of two windows of rounds; where no utility moves from the one to the other, the game
    counts as at rest, and the run stops once that round is evaluated (in the reading released it
    does not). Default: 50, and 100 in the reading decoupled, which gains a little for longer."""
    tolerance: float = 2e-3
    """What counts as a move: relative change of the mean utility of clients or server from one
    window of such rounds to the next."""

    def __post_init__(self) -> None:
        between("game.lr_min", self.lr_min, 0, math.inf)
        for name in ("epochs_min", "steps", "patience"):
            at_least(f"game.{name}", getattr(self, name), 1)
        at_least("game.tolerance", self.tolerance, 0)
        at_least("game.evenness", self.evenness, 0)
        if self.generality is not None and not 0 <= self.generality <= 1:
            raise UserError(f"'game.generality' must lie between 0 and 1, not {self.generality:g}")
        between("game.alpha", self.alpha, 0, math.inf)
        self.ratio()

    def ratio(self) -> tuple[float, float] | None:
        """The reward ratio as numbers; None where everybody has its own utility.

        Raises:
            UserError: it cannot be read.
        """
        if self.reward_ratio is None:
            return None
        try:
            of_server, of_clients = (float(part) for part in self.reward_ratio.split(":"))
        except ValueError:
            of_server = of_clients = math.nan
        if not (of_server >= 0 and of_clients >= 0 and 0 < of_server + of_clients < math.inf):
            raise UserError(
                "'game.reward_ratio' must be global:local, two numbers from 0 on, not both 0, as "
                f"10:1, not '{self.reward_ratio}'"
            )
        return of_server, of_clients


@dataclass(frozen=True)
class Settings(BaseSettings):
    """One run of a federation of classifiers."""

    method: Method = "page"
    """page, or a method it is compared with."""
    reading: PageReading = "recommended"  # type: ignore[assignment]  # one more than other papers
    """recommended: the idea done right; literal: as printed; released: as the public code does;
    decoupled: no longer the paper's game, but drift-corrected uploads, the follower's weights, and
    a personal branch that is never sent as the leaders' action."""
    rounds: int = DEMONSTRATION
    """Most communication rounds; the public code plays 1000, and so do the tables."""
    data: TaskSettings = field(default_factory=TaskSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    game: GameSettings = field(default_factory=GameSettings)
    branch: BranchOptions = field(default_factory=BranchOptions)
    client_agent: AgentOptions = field(default_factory=AgentOptions)
    server_agent: AgentOptions = field(default_factory=AgentOptions)
    fedprox: FedProxOptions = field(default_factory=FedProxOptions)
    scaffold: ScaffoldOptions = field(default_factory=ScaffoldOptions)
    feddyn: FedDynOptions = field(default_factory=FedDynOptions)
    dap_fl: DapFLOptions = field(default_factory=DapFLOptions)
    fedrecon: FedReconOptions = field(default_factory=FedReconOptions)
    pfedme: PFedMeOptions = field(default_factory=PFedMeOptions)
    ditto: DittoOptions = field(default_factory=DittoOptions)
    fedala: FedALAOptions = field(default_factory=FedALAOptions)
    fedrod: FedRODOptions = field(default_factory=FedRODOptions)
    fedamp: FedAMPOptions = field(default_factory=FedAMPOptions)
    central: CentralOptions = field(default_factory=CentralOptions)
    certify: bool = False
    """Test before and after learning how near the play is to an equilibrium; `coterie page certify`
    tests the end of a run later."""
    certificate: CertificateSettings = field(default_factory=CertificateSettings)

    @property
    def tunes_lr(self) -> bool:
        """Whether clients choose their learning rate, from more than one."""
        tunes = self.game.tune_lr and self.reading != "decoupled"
        return tunes and self.game.lr_min < self.train.lr

    @property
    def tunes_epochs(self) -> bool:
        """Whether clients choose their number of epochs, from more than one."""
        tunes = self.game.tune_epochs and self.reading != "decoupled"
        return tunes and self.game.epochs_min < self.train.epochs

    @property
    def has_leaders(self) -> bool:
        """Whether clients have anything to choose."""
        branches = self.reading == "decoupled" and bool(self.branch.use)
        return self.tunes_lr or self.tunes_epochs or branches
