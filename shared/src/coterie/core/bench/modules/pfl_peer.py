"""The clients of the plain loop, trained by pfl-research where it is installed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.bench.modules.client_loop import Batches, ClientLoop
from coterie.core.bench.pfl_rounds import PflRounds
from coterie.core.data.samples.samples import SampleData
from coterie.core.methods.settings.fedavg import FedAvgSettings


class PflLoop(ClientLoop):
    """Local training of FedAvg in pfl; clients weigh the same, whatever they hold.

    Args:
        module: has ``loss(batch)``; trained in place.
        settings: of the method, with one epoch and a batch size.
        data: of C clients.
        seed: of the order of the samples.

    Raises:
        ModuleNotFoundError: there is no pfl.
        ValueError: there are several epochs, for which pfl would not shuffle again.
    """

    def __init__(
        self, module: nn.Module, settings: FedAvgSettings, data: SampleData, seed: int = 0
    ) -> None:
        super().__init__(module, settings, data, seed)
        if settings.epochs != 1:
            raise ValueError(f"pfl is measured with one epoch, not {settings.epochs}")
        sgd = partial(torch.optim.SGD, weight_decay=settings.weight_decay, foreach=False)
        asked, size = _Asked(module, list(data.samples)), settings.batch_size
        self._rounds = PflRounds(asked, sgd, settings.lr, len(data), size, settings.clip)

    def round(self, weights: dict[str, Tensor], batches: Batches | None = None) -> list[Tensor]:
        """Train every client and return the mean of their parameters; arguments as the loop's."""

        def samples(client: int) -> list[Tensor]:
            if batches is None:
                return self._shuffled(client)
            return _joined(batches(client))

        ordered = [weights[name] for name, _ in self.module.named_parameters()]
        return self._rounds.round(ordered, samples)

    def _shuffled(self, client: int) -> list[Tensor]:
        samples = list(self.clients[client].values())
        order = torch.randperm(len(samples[0]), generator=self.generator)
        return [values[order] for values in samples]


class _Asked(nn.Module):
    """A module that is asked for its loss as pfl asks: field by field."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module: Any = module
        self.names = names

    def loss(self, *fields: Tensor) -> Tensor:
        loss: Tensor = self.module.loss(dict(zip(self.names, fields, strict=True)))
        return loss

    def metrics(self, *fields: Tensor) -> dict[str, Any]:
        return {}


def _joined(batches: Iterable[dict[str, Tensor]]) -> list[Tensor]:
    """Samples that pfl, which cuts them in their order, cuts into these batches again."""
    whole = list(batches)
    return [torch.cat([batch[name] for batch in whole]) for name in whole[0]]
