"""What the benchmark compares with: FedAvg one client at a time, in plain torch and in pfl.

Fair to the loop in torch: tensors stay in memory and batches are index batches of them, one
``nn.Module`` serves all clients (parameters are copied in place), every client and round gets a
fresh ``torch.optim.SGD``, and torch's ``foreach`` forms, which are slower on few small tensors, are
off. pfl-research is there where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.core.pfl_rounds import PflRounds
from coterie.core.data.samples.samples import SampleData
from coterie.core.methods.settings.fedavg import FedAvgSettings

Batch = dict[str, Tensor]
Batches = Callable[[int], Iterable[Batch]]


class ClientLoop:
    """Local training of FedAvg.

    Args:
        module: has ``loss(batch)``; trained in place.
        settings: of the method.
        data: of C clients.
        seed: of the order of the samples.
    """

    def __init__(
        self, module: nn.Module, settings: FedAvgSettings, data: SampleData, seed: int = 0
    ) -> None:
        self.module: Any = module
        self.settings = settings
        sizes = data.lengths.tolist()
        fields = {name: values.split(sizes) for name, values in data.samples.items()}
        self.clients = [{n: parts[c] for n, parts in fields.items()} for c in range(len(data))]
        self.generator = torch.Generator().manual_seed(seed)

    def round(self, weights: dict[str, Tensor], batches: Batches | None = None) -> list[Tensor]:
        """Train every client from the same model and return the mean of their parameters.

        Batches of a client that are not given are drawn.
        """
        parameters = list(self.module.parameters())
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for client in range(len(self.clients)):
            with torch.no_grad():
                for name, parameter in self.module.named_parameters():
                    parameter.copy_(weights[name])
            self._train(self._draw(client) if batches is None else batches(client), parameters)
            for one, parameter in zip(total, parameters, strict=True):
                one += parameter.detach()
        return [one / len(self.clients) for one in total]

    def _train(self, batches: Iterable[Batch], parameters: list[nn.Parameter]) -> None:
        settings = self.settings
        optimizer = torch.optim.SGD(
            parameters, lr=settings.lr, weight_decay=settings.weight_decay, foreach=False
        )
        for batch in batches:
            optimizer.zero_grad()
            self.module.loss(batch).backward()
            if settings.clip is not None:
                clip_grad_norm_(parameters, settings.clip, foreach=False)
            optimizer.step()

    def _draw(self, client: int) -> Iterable[Batch]:
        samples = self.clients[client]
        count = len(next(iter(samples.values())))
        for _ in range(self.settings.epochs):
            order = torch.randperm(count, generator=self.generator)
            for part in order.split(self.settings.batch_size or count):
                yield {name: values[part] for name, values in samples.items()}


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
