"""Settings of Dap-FL. Torch-free; the docstring of a field is its ``--help`` text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from coterie.core.agents.settings import DDPGSettings
from coterie.core.errors import UserError
from coterie.core.methods.settings.fedavg import Checked, FedAvgSettings
from coterie.core.settings.sections import each_at_least, each_positive


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
