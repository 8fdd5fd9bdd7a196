"""Sums over samples, which are all that a step of a model of samples needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from coterie.core.local_training.row_optimizer import Params

T = TypeVar("T")
AUTOREC, GAUSSIAN = "autorec", "gaussian"
"""Names of the models."""


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


def named(name: str, values: Mapping[str, T]) -> dict[str, T]:
    """Put what belongs to a model under its name, beside that of others.

    Example:
        >>> both = named("a", {"w": 1}) | named("b", {"w": 2})
        >>> both, params_of(both, "b")
        ({'a/w': 1, 'b/w': 2}, {'w': 2})
    """
    return {f"{name}/{key}": value for key, value in values.items()}


def params_of(values: Mapping[str, T], name: str) -> dict[str, T]:
    """What belongs to one model."""
    begin = f"{name}/"
    return {key.removeprefix(begin): one for key, one in values.items() if key.startswith(begin)}
