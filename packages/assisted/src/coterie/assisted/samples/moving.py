"""The server's part in a model of samples: it moves one model by sums, and sees no sample."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from coterie.assisted.aae.network import AAE
from coterie.assisted.samples import gaussian
from coterie.assisted.samples.sums import AUTOREC, GAUSSIAN
from coterie.assisted.settings import ModelSettings, Settings, TrainSettings
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import Params, RowState
from coterie.core.tensors.keys import Key


class Mover(Protocol):
    """Moves a model of samples of d coordinates."""

    def begin(self, key: Key, dtype: torch.dtype) -> tuple[Params, RowState | None]:
        """Give the model before the first step, and what is remembered between steps."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the sums that a step needs."""

    def moved(
        self, params: Params, memory: RowState | None, sums: Params, cells: int, samples: int
    ) -> tuple[Params, RowState | None]:
        """Take a step.

        Args:
            params: of the model.
            memory: as it was after the step before.
            sums: over all samples.
            cells: number of their residuals, at least 1.
            samples: number of samples with one.
        """


class GaussianMover:
    """Moves a normal distribution.

    Args:
        size: number d of coordinates.
        model: settings.
    """

    def __init__(self, size: int, model: ModelSettings) -> None:
        self._size, self._rank = size, model.rank

    def begin(self, key: Key, dtype: torch.dtype) -> tuple[Params, None]:
        """Let coordinates vary alike, and nearly alone."""
        return gaussian.begin(self._size, self._rank, key, dtype), None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of A Q and of the diagonal of A."""
        return gaussian.shapes(self._size, self._rank)

    def moved(
        self, params: Params, memory: RowState | None, sums: Params, cells: int, samples: int
    ) -> tuple[Params, None]:
        """Take a step of expectation-maximisation."""
        return gaussian.moved(params, sums, samples), None


class AutoRecMover:
    """Moves autoencoders, each by a step of Adam on the mean gradient over all residuals.

    Args:
        size: number d of coordinates.
        model: settings.
        train: settings.
    """

    def __init__(self, size: int, model: ModelSettings, train: TrainSettings) -> None:
        self._network = AAE(size, size, {}, model.hidden, model.code, model.dropout)
        self._members, self._train = model.members, train
        self._adam = RowAdam(weight_decay=train.weight_decay)

    def begin(self, key: Key, dtype: torch.dtype) -> tuple[Params, RowState]:
        """Draw first parameters of every member."""
        drawn = [
            self._network.start(key.fold("member", number), dtype)
            for number in range(self._members)
        ]
        params: Params = {
            name: torch.stack([one[name] for one in drawn]) for name in self._network.shapes
        }
        return params, self._adam.begin(params)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the gradients of all members."""
        return {name: (self._members, *shape) for name, shape in self._network.shapes.items()}

    def moved(
        self, params: Params, memory: RowState | None, sums: Params, cells: int, samples: int
    ) -> tuple[Params, RowState]:
        """Take a step of Adam."""
        assert memory is not None
        grads: dict[str, Tensor] = {name: value / cells for name, value in sums.items()}
        how = self._train
        return self._adam.step(params, grads, memory, how.lr, clip=how.clip)


def movers(settings: Settings, size: int) -> dict[str, Mover]:
    """Make what moves the models of samples that the settings name.

    Args:
        settings: of the run.
        size: number d of coordinates.
    """
    model, found = settings.model, dict[str, Mover]()
    if model.name != "gaussian":
        found[AUTOREC] = AutoRecMover(size, model, settings.train)
    if model.name != "autorec":
        found[GAUSSIAN] = GaussianMover(size, model)
    return found
