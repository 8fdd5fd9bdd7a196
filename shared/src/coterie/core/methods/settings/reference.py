"""Settings of local and central training, the bounds of federated methods. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.errors import UserError
from coterie.core.methods.settings.fedavg import Checked, FedAvgSettings, must_keep_models
from coterie.core.settings.sections import at_least


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
