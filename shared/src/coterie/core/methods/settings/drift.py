"""Settings of methods against the drift of clients. Torch-free; docstrings are ``--help`` texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.methods.settings.fedavg import Checked, FedAvgSettings, finite_positive, steady


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
