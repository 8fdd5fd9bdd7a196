"""Sums over samples, which are all that a step of a model of samples needs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.local_training.row_optimizer import Params


@dataclass(frozen=True)
class Sums:
    """What a step needs of some samples; of more samples each field is the sum.

    Attributes:
        values: by their names.
        loss: ``()`` what the step is to lower.
        samples: number of samples with a residual.
    """

    values: Params
    loss: Tensor
    samples: int
