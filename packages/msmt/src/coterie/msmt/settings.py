"""Settings of PF-MSMTrec and the methods it is compared with. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Literal

from coterie.core.errors import UserError, nearest
from coterie.core.methods.settings.any_module import (
    CentralOptions,
    DittoOptions,
    FedAMPOptions,
    FedProxOptions,
)
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.sections import NamedData, at_least, between, each_at_least
from coterie.msmt.data_sets import (
    CENSUS_SCENARIOS,
    MOVIELENS_SCENARIOS,
    OPTIONS,
    OWN_FILE,
    is_file_name,
)

Part = Literal["embeddings", "experts", "gates"]
PATTERNS: dict[Part, tuple[str, ...]] = {
    "embeddings": ("inputs.*",),
    "experts": ("weight", "task_generator.*", "scenario_generator.*", "first.*", "rest.*"),
    "gates": ("gates.*",),
}
"""Names of the parameters of each part of the network; some networks lack some of them."""


@dataclass(frozen=True)
class AggregationOptions:
    """PF-MSMTrec's federated part; what is null is the reading's choice."""

    c: float = 0.4
    """c: radius of the ball around the mean increment, over its length (Eq. 13)."""
    lam: float = 0.5
    """λ: weight of the alignment with the averaged parameters (Eq. 24), a mean over the numbers of
    W_s; the sum of Eq. 23 is so many times stronger."""
    increments: Literal["parameters", "averages"] | None = None
    """Δ: of each scenario's parameters (Eq. 11), or of the averages of two rounds (Eq. 14)."""
    fedbn: Literal["increment", "literal", "off"] | None = None
    """Federated batch normalisation: whitens increments before they are coordinated, or makes the
    average that of normalised parameters, β_g (Eq. 10), or neither."""
    eps: float = 1e-3
    """ε_g of federated batch normalisation, over the mean of σ_g²."""
    coordinate: bool = True
    """Conflicts are coordinated; else U* is the mean increment."""
    centre: Literal["global", "own"] = "global"
    """Centre of the ball: the mean increment (Eq. 13), or each scenario's and expert's own (Eqs. 15
    to 17)."""
    per_expert: bool = False
    """Each expert's increments are averaged and coordinated by themselves, over the scenarios."""
    server_lr: float = 1.0
    """Step of the server: by what it multiplies the mean increment ΔW̄ of the experts' scenario
    parameters; 1 in Eq. 18."""
    psi: bool = True
    """ψ is learned; else it stays 0."""
    expert: Literal["pf", "fedavg"] = "pf"
    """Scenario parameters of the experts: personalised (Eq. 18), or averaged."""
    tower: Literal["pf", "fedavg"] = "pf"
    """Towers: personalised (Eq. 21), or averaged."""
    share: tuple[Part, ...] = ()
    """Further parts of the network that are averaged: embeddings, experts (all that the paper keeps
    local in them), gates."""
    weighting: Literal["equal", "samples"] = "equal"
    """How what is averaged is weighted: all scenarios alike (Eqs. 10 and 12), or by samples."""
    generator: Literal["factored", "full", "leaf"] = "factored"
    """What makes the template's parameters of embeddings: factors of a row and a column, all
    numbers (for small networks), or, for the scenario, nothing: they are parameters."""
    upload: Literal["full", "factored"] = "full"
    """What is sent of the scenario parameters: all numbers, or their factors, which are few."""

    def __post_init__(self) -> None:
        at_least("pf.c", self.c, 0)
        at_least("pf.lam", self.lam, 0)
        between("pf.server_lr", self.server_lr, 0, math.inf)
        between("pf.eps", self.eps, 0, math.inf)

    def averaged(self, names: Iterable[str]) -> list[str]:
        """Choose the parameters that are averaged beside W_s and Θ, of those that there are.

        Example:
            >>> AggregationOptions(share=("gates",)).averaged(["gates.bias", "psi"])
            ['gates.bias']
        """
        patterns = [pattern for part in self.share for pattern in PATTERNS[part]]
        return [n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns)]


@dataclass(frozen=True)
class EnsembleOptions:
    """The method `ensemble`: a scenario's own network mixed with one that others taught.

    Nothing leaves a scenario that FedAvg would not send. All choices are made on its own validation
    samples.
    """

    partner: Literal["fedavg", "local"] = "fedavg"
    """The second network: FedAvg's, fine-tuned from its best round, or, as a control of what the
    mix itself gives, another one of the scenario's own."""
    rates: tuple[float, ...] = (1.0, 0.2, 0.02)
    """Learning rates of the fine-tuning that are tried, as shares of `train.lr`."""
    epochs: int = 6
    """Most epochs of it, at each rate; 0 mixes the best round as it is."""
    shares: int = 11
    """Weights of the own network that are tried, from 0 to 1, for each task."""

    def __post_init__(self) -> None:
        each_at_least(self, 0, "epochs", prefix="ensemble.")
        each_at_least(self, 2, "shares", prefix="ensemble.")
        if not all(0 < rate <= 1 for rate in self.rates):
            raise UserError(
                f"'ensemble.rates' are shares of the learning rate, in (0, 1], not {self.rates}"
            )


# Which samples, and who holds them. Torch-free; docstrings are ``--help``.

_SCENARIOS = {"ml-1m": MOVIELENS_SCENARIOS, "census-income": CENSUS_SCENARIOS}
_PLACE = {"name", "root"}


@dataclass(frozen=True)
class ScenarioData(NamedData):
    """Which samples, and how they are cut into scenarios, each a client."""

    name: str = "sample"
    """sample (a small generated world), world, teacher, ml-1m, census-income, another name that
    `coterie data` lists for this paper, the path of a CSV or Parquet file or of a folder made by
    save_to_disk of Hugging Face's datasets, or hf:OWNER/NAME of their hub."""
    shift: float | None = None
    """world, teacher: how far scenarios disagree, from 0 (not at all) to 1 (they have nothing in
    common); default 0.3 for world, 0 for teacher."""
    cov_shift: float = 0.3
    """world: how far the inputs of scenarios differ, from 0 to 1."""
    rho: float = 0.5
    """world, teacher: correlation of what the two tasks depend on, from -1 to 1."""
    snr: float | None = None
    """world, teacher: deviation of the score behind a label against that of the noise; default 0.9
    for world, 1.2 for teacher."""
    rows: tuple[int, ...] | None = None
    """world, teacher: training samples of each scenario; default [1000,2000,4000,8000] for world,
    twelve times 500 for teacher."""
    valid_rows: int | None = None
    """world, teacher: validation samples of every scenario; default 2000 for world, 1000 for
    teacher."""
    test_rows: int | None = None
    """world, teacher: test samples of every scenario; default 6000 for world, 3000 for teacher."""
    scenario: str | None = None
    """What tells scenarios apart: of ml-1m gender (default) or age, of census-income worker
    (default), race or sex, of a file the name of a column."""
    tasks: tuple[str, ...] = ()
    """Columns of a file that hold the labels, 0 or 1, as [click,buy]."""
    categories: tuple[str, ...] = ()
    """Columns of a file that are categories; where neither these nor numbers are named, all columns
    are looked at, and the run says what was chosen."""
    numbers: tuple[str, ...] = ()
    """Columns of a file that are numbers."""
    split: str | None = None
    """Column of a file that says train, valid or test; default is to cut at random."""
    valid: float = 0.1
    """Share of the samples that choices are made by, where they are cut at random: of every
    scenario, of ml-1m of every user."""
    test: float = 0.1
    """Share of the samples that is tested, likewise."""
    samples: int | None = None
    """Most samples of a scenario, drawn at random, for small trials."""
    paper_protocol: bool = False
    """Choose by the test samples, as the paper's figures are: validation samples stay in training.
    Results are then too good."""

    def __post_init__(self) -> None:
        for name in ("shift", "cov_shift"):
            value = getattr(self, name)
            at_least(f"data.{name}", value, 0)
            if value is not None and value > 1:
                raise UserError(f"'data.{name}' must be at most 1, not {value:g}")
        if not -1 <= self.rho <= 1:
            raise UserError(f"'data.rho' must be from -1 to 1, not {self.rho:g}")
        between("data.snr", self.snr, 0, 100)
        each_at_least(self, 1, "valid_rows", "test_rows", "samples", prefix="data.")
        if self.rows is not None and (not self.rows or min(self.rows) < 1):
            raise UserError("'data.rows' must be numbers of samples, each at least 1")
        for name in ("valid", "test"):
            between(f"data.{name}", getattr(self, name), 0, 0.4)
        self._check_columns()
        self._refuse_idle()

    def _check_columns(self) -> None:
        """Check what tells scenarios apart, and that a file's columns are named once."""
        known = _SCENARIOS.get(self.name)
        if known and self.scenario not in (None, *known):
            raise UserError(
                f"'data.scenario' of {self.name} is one of {', '.join(known)}, not "
                f"'{self.scenario}': {nearest(str(self.scenario), known)}"
            )
        if self.is_file and (self.scenario is None or not self.tasks):
            lacking = "data.scenario" if self.scenario is None else "data.tasks"
            raise UserError(
                f"{self.name} is a file: name its column of scenarios by --data.scenario COLUMN "
                f"and those of labels by --data.tasks [COLUMN,…] ('{lacking}' is missing)"
            )
        roles = [*self.tasks, *self.categories, *self.numbers]
        roles += [name for name in (self.scenario, self.split) if name is not None]
        for name in roles:
            if self.is_file and roles.count(name) > 1:
                raise UserError(f"column '{name}' has two roles in data: leave one of them out")

    def _refuse_idle(self) -> None:
        """Refuse a setting that was changed and has no effect."""
        taken = OPTIONS.get(self.name, OWN_FILE if self.is_file else None)
        idle: dict[str, str] = {}
        if self.paper_protocol:
            why = "data.paper_protocol, by which the test samples take their place"
            idle |= dict.fromkeys(("valid", "valid_rows"), why)
        if self.split is not None:
            why = "data.split: the file says itself which samples are for what"
            idle |= dict.fromkeys(("valid", "test"), why)
        if taken is not None:
            names = {setting.name for setting in fields(self)} - _PLACE
            idle |= dict.fromkeys(names - taken, f"the data set {self.name}")
        for setting in fields(self):
            if setting.name in idle and getattr(self, setting.name) != setting.default:
                reason = idle[setting.name]
                raise UserError(f"'data.{setting.name}' has no effect with {reason}: leave it out")

    @property
    def is_file(self) -> bool:
        """Whether the name is the path of a file of the user's own."""
        return self.name not in OPTIONS and is_file_name(self.name)


# The network of a scenario. Torch-free; docstrings are ``--help``.

Network = Literal[
    "template", "single-task", "mmoe", "ple", "esmm", "aitm", "star", "aesm2", "pepnet"
]


@dataclass(frozen=True)
class ModelSettings:
    """The network; the paper has experts [512,256,128] and towers [128,64,32]."""

    name: Network = "template"
    """template: experts with the paper's parameter template; else what it is compared with."""
    embedding: int = 8
    """d: numbers in the embedding of a categorical field, and of all numerical ones together."""
    experts: int = 4
    """N: expert networks."""
    expert_layers: tuple[int, ...] = (64, 32)
    """Units of an expert's layers."""
    tower_layers: tuple[int, ...] = (32, 16)
    """Units of the hidden layers of a task's tower."""
    dropout: float = 0.2
    """Share of the hidden units that is dropped in training."""
    mlp_norm: bool = True
    """Batch normalisation behind the linear layers of experts and towers."""

    def __post_init__(self) -> None:
        each_at_least(self, 1, "embedding", "experts", prefix="model.")
        for name in ("expert_layers", "tower_layers"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise UserError(f"'model.{name}' must be numbers of units, each at least 1")
        if not 0 <= self.dropout < 1:
            raise UserError(f"'model.dropout' must be from 0 to below 1, not {self.dropout:g}")


# Local training of a scenario. Torch-free; docstrings are ``--help``.


@dataclass(frozen=True)
class TrainSettings:
    """Local training in a round, the same for all methods."""

    epochs: int = 1
    """Local epochs."""
    batch_size: int = 2048
    """Samples in a step."""
    lr: float = 1e-3
    """Learning rate."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """What makes the steps."""
    keep_moments: bool = True
    """Adam's moments stay with a scenario from round to round; false begins anew."""
    weight_decay: float = 1e-6
    """L2 pull on all parameters."""
    clip: float | None = None
    """Largest norm of a gradient; null clips nothing."""
    participation: float = 1.0
    """Share of the scenarios that are drawn for a round."""
    weighting: Literal["samples", "equal"] = "samples"
    """How the federated baselines average scenarios: by numbers of samples, or all alike."""
    share: tuple[str, ...] = ()
    """Patterns of the names of the parameters that the federated baselines share, as inputs.*; all
    but running statistics if none is named."""
    evaluate_every: int = 1
    """Rounds from one evaluation to the next; the last of `rounds` is evaluated too."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "evaluate_every"):
            at_least(f"train.{name}", getattr(self, name), 1)
        at_least("train.weight_decay", self.weight_decay, 0)
        for name in ("lr", "clip"):
            between(f"train.{name}", getattr(self, name), 0, math.inf)
        between("train.participation", self.participation, 0, 1)


Method = Literal[
    "pf-msmtrec", "ensemble", "fedavg", "fedprox", "ditto", "fedamp", "local", "central"
]


@dataclass(frozen=True)
class Settings(BaseSettings):
    """One run of a federation of scenarios."""

    method: Method = "pf-msmtrec"
    """pf-msmtrec, ensemble (ours), or a method it is compared with."""
    rounds: int = 10
    """Most communication rounds."""
    data: ScenarioData = field(default_factory=ScenarioData)
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    pf: AggregationOptions = field(default_factory=AggregationOptions)
    ensemble: EnsembleOptions = field(default_factory=EnsembleOptions)
    fedprox: FedProxOptions = field(default_factory=FedProxOptions)
    ditto: DittoOptions = field(default_factory=DittoOptions)
    fedamp: FedAMPOptions = field(default_factory=FedAMPOptions)
    central: CentralOptions = field(default_factory=CentralOptions)
    compare: bool | None = None
    """At the end of a run of pf-msmtrec, train local, FedAvg and central too, with the same network
    and rounds, for comparison.md and comparison.png; default is on the built-in sample alone."""

    @property
    def compares(self) -> bool:
        """Whether a run is shown beside others."""
        asked = self.data.name == "sample" if self.compare is None else self.compare
        return asked and self.method == "pf-msmtrec"
