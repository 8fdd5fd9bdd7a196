"""The client half of FedAvg: some epochs of local SGD on the server's model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.baselines.settings import FedAvgSettings
from coterie.core.client import Client, step
from coterie.core.data.samples import MiniBatches, SampleData, batch_counts
from coterie.core.errors import UserError
from coterie.core.local import Loss, RowSGD, fit, losses, masked, pure_loss
from coterie.core.messages import Down, Private, Report, Reveals, Up, leaves
from coterie.core.seeding import Key


@dataclass(frozen=True)
class GlobalModel(Down):
    """The server's model w.

    Attributes:
        weights: parameters by name.
    """

    weights: dict[str, Tensor]


@dataclass(frozen=True)
class ModelUpdate(Up):
    """What a client's local training changed; stacked over C clients."""

    change: dict[str, Tensor] = leaves(  # each (C, ...)
        "change of the model's parameters, w_k - w", reveals=Reveals.PARAMETERS
    )
    samples: Tensor = leaves("number of samples n_k", reveals=Reveals.STEPS)  # (C,) int64
    loss: Tensor = leaves("mean training loss", reveals=Reveals.MEASUREMENT)  # (C,)


@dataclass(frozen=True)
class LossReport(Report):
    """Loss of the server's model on the clients' data; NaN for a client without any."""

    loss: Tensor = leaves("mean loss", reveals=Reveals.MEASUREMENT)  # (C,)
    samples: Tensor = leaves("number of samples n_k", reveals=Reveals.STEPS)  # (C,) int64


@dataclass(frozen=True)
class Stateless(Private):
    """No private state: a client keeps nothing but its data."""


class FedAvgClient(Client[Stateless]):
    """ClientUpdate of FedAvg (McMahan et al., AISTATS 2017, Algorithm 1) for any module.

    Args:
        module: gives the form of the model by ``loss(batch)``, the mean over a batch's samples of
            something that depends on one sample. Its values do not matter, but those of buffers and
            of parameters without gradient do: they are constants.
        settings: of the method.
        as_batch: makes of a dict of samples, ``name -> (B, ...)``, what ``module.loss`` takes;
            None = the dict itself.

    Raises:
        UserError: the module has batch normalisation, whose statistics mix samples.
    """

    def __init__(
        self,
        module: nn.Module,
        settings: FedAvgSettings,
        as_batch: Callable[[dict[str, Tensor]], Any] | None = None,
    ) -> None:
        _refuse_batch_norm(module)
        self.settings = settings
        self._loss = masked(pure_loss(module, as_batch))

    def enrol(self, data: SampleData, key: Key) -> Stateless:
        """Keep nothing."""
        return Stateless()

    def work(self, data: SampleData) -> Tensor:
        """Local steps of each client, ``(C,)``."""
        return self.settings.epochs * batch_counts(data.lengths, self.settings.batch_size)

    def objective(self, down: GlobalModel) -> Loss:
        """What a client minimises: F_k, its own loss."""
        return self._loss

    @step
    def update(
        self, down: GlobalModel, mine: Stateless, data: SampleData, key: Key
    ) -> tuple[ModelUpdate, None]:
        """Run E epochs of SGD from w; a client without data changes nothing and weighs 0."""
        batches = MiniBatches(data, self.settings.epochs, self.settings.batch_size, key)
        start = {name: w.expand(len(data), *w.shape) for name, w in down.weights.items()}
        fitted = fit(
            self.objective(down), start, batches, RowSGD(), self.settings.lr, batches.steps
        )
        change = {name: new - down.weights[name] for name, new in fitted.params.items()}
        return ModelUpdate(change, data.lengths, fitted.loss), None

    @step
    def evaluate(
        self, down: GlobalModel, mine: Stateless, data: SampleData, key: Key
    ) -> tuple[LossReport, None]:
        """Measure the loss of w on all of a client's data, without the terms of `objective`."""
        rows = data.lengths.nonzero().flatten()
        loss = next(iter(down.weights.values())).new_full((len(data),), torch.nan)
        if rows.numel():
            loss[rows] = losses(self._loss, down.weights, MiniBatches(data, 1, None, key), rows)
        return LossReport(loss, data.lengths), None


def _refuse_batch_norm(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"'{name}' is batch normalisation, which mixes samples and keeps statistics: "
                "use GroupNorm or LayerNorm"
            )
