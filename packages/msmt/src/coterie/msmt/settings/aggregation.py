"""What crosses between scenarios, and what the server makes of it. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from coterie.core.settings.sections import at_least, between

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
    """λ: weight of the alignment with the averaged parameters (Eq. 24)."""
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
