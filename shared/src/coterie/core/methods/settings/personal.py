"""Settings of the methods that give each client a model of its own. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.errors import UserError
from coterie.core.methods.settings.fedavg import (
    Checked,
    FedAvgSettings,
    finite,
    finite_positive,
    must_keep_models,
)
from coterie.core.settings.sections import between, each_at_least, each_positive


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
