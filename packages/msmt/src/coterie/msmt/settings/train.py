"""Local training of a scenario. Torch-free; docstrings are ``--help``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from coterie.core.settings.sections import at_least, between


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
