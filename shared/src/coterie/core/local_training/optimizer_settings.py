"""Settings of an optimizer; importing this module imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, get_args

from coterie.core.errors import UserError, nearest

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer

OptimizerName = Literal["sgd", "adam", "adamw", "adagrad"]


@dataclass(frozen=True)
class OptimizerSettings:
    """Which optimizer of `torch.optim`, and its step.

    Attributes:
        name: sgd, adam, adamw or adagrad.
        lr: learning rate, above 0.
        weight_decay: L2 pull on all parameters (decoupled for adamw), at least 0.
        momentum: of sgd alone, in [0, 1).
    """

    name: OptimizerName = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        names = get_args(OptimizerName)
        if self.name not in names:
            raise UserError(f"optimizer '{self.name}' is unknown: {nearest(self.name, names)}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise UserError(f"optimizer lr must be above 0, got {self.lr}")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise UserError(f"optimizer weight_decay must be 0 or more, got {self.weight_decay}")
        if not 0 <= self.momentum < 1:
            raise UserError(f"optimizer momentum must be in [0, 1), got {self.momentum}")
        if self.momentum and self.name != "sgd":
            raise UserError(f"momentum is for sgd; set it to 0 for {self.name}")

    def build(self, parameters: Iterable[Parameter]) -> Optimizer:
        """Make the optimizer for these parameters."""
        from torch import optim

        options = {key: value for key, value in asdict(self).items() if key != "name"}
        if self.name != "sgd":
            del options["momentum"]
        classes = {
            "sgd": optim.SGD,
            "adam": optim.Adam,
            "adamw": optim.AdamW,
            "adagrad": optim.Adagrad,
        }
        return classes[self.name](parameters, **options)
