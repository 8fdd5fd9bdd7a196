"""The network of a scenario. Torch-free; docstrings are ``--help``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import UserError
from coterie.core.settings.sections import each_at_least

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
