"""Settings of PF-MSMTrec and the methods it is compared with. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from coterie.core.methods.settings.proximal import DittoOptions, FedAMPOptions, FedProxOptions
from coterie.core.methods.settings.reference import CentralOptions
from coterie.core.settings.base import BaseSettings
from coterie.msmt.settings.aggregation import AggregationOptions
from coterie.msmt.settings.data import ScenarioData
from coterie.msmt.settings.model import ModelSettings
from coterie.msmt.settings.train import TrainSettings

Method = Literal["pf-msmtrec", "fedavg", "fedprox", "ditto", "fedamp", "local", "central"]


@dataclass(frozen=True)
class Settings(BaseSettings):
    """One run of a federation of scenarios."""

    method: Method = "pf-msmtrec"
    """pf-msmtrec, or a method it is compared with."""
    rounds: int = 10
    """Most communication rounds."""
    data: ScenarioData = field(default_factory=ScenarioData)
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    pf: AggregationOptions = field(default_factory=AggregationOptions)
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
