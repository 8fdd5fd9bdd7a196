"""What is measured of a model: its loss and accuracy, or what the module itself says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.local_training.losses import Batch
from coterie.core.metrics.monitor import Monitor


@dataclass(frozen=True)
class Quality:
    """Measurements of C models; NaN where there is no sample, or a measure is not defined.

    Attributes:
        values: by name, each ``(C,)`` float64; ``loss`` and ``accuracy``, or the module's own.
    """

    values: dict[str, Tensor]

    @property
    def loss(self) -> Tensor:
        """``(C,)`` mean loss.

        Raises:
            UserError: the module's own measures have none.
        """
        if "loss" not in self.values:
            known = ", ".join(self.values)
            raise UserError(
                f"this method needs the loss, and the model measures only {known}: add 'loss' to "
                "its measures"
            )
        return self.values["loss"]

    @property
    def accuracy(self) -> Tensor:
        """``(C,)`` share of samples that the model gets right; NaN where it cannot be told."""
        found = self.values.get("accuracy")
        return torch.full_like(self.loss, torch.nan) if found is None else found


@runtime_checkable
class MeasuresItself(Protocol):
    """A module with measures of its own, which need all samples of a client at once, as an AUC.

    Attributes:
        monitor: what a round is chosen by; its key is ``eval/`` and the name of a measure.
        measure_names: of the measures.
    """

    monitor: Monitor
    measure_names: tuple[str, ...]

    def predictions(self, batch: Batch) -> Batch:
        """What is kept of the samples of a batch, each ``(B, ...)``."""
        ...

    def measures(self, predictions: Batch) -> dict[str, Tensor]:
        """Measure all samples of a client by what was kept; each ``()``, NaN = undefined."""
        ...


ACCURACY = Monitor("eval/accuracy")
"""What a round is chosen by where the module does not say."""


def monitor_of(module: nn.Module) -> Monitor:
    """What a round is chosen by."""
    return module.monitor if isinstance(module, MeasuresItself) else ACCURACY


def shown_names(module: nn.Module) -> tuple[str, ...]:
    """Measures of which a mean over the models that count is noted beside that of each model."""
    if isinstance(module, MeasuresItself):
        return module.measure_names
    return (ACCURACY.key.removeprefix("eval/"),)
