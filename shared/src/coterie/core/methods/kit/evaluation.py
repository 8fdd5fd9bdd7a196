"""How good a model is on samples: mean loss, and accuracy where the module can tell it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import AsBatch, Batch, Params, masked, of_clients, pure

_NAMES = ("loss", "accuracy")
_BATCH = 1000  # samples of a model at a time
_NUMBERS = 1 << 22  # in the samples of models measured together; layers make many times as many


@dataclass(frozen=True)
class Quality:
    """Measurements of C models; NaN where there is no sample, or no accuracy.

    Attributes:
        loss: ``(C,)`` mean loss.
        accuracy: ``(C,)`` share of samples that the model gets right.
    """

    loss: Tensor
    accuracy: Tensor


class Evaluator:
    """Measure models of one form.

    Args:
        module: has ``loss(batch)``, a mean over samples, and for the accuracy ``correct(batch)``,
            ``(B,)`` bool.
        as_batch: see `coterie.core.local_training.fit.pure`.
    """

    def __init__(self, module: nn.Module, as_batch: AsBatch | None = None) -> None:
        measures = {"loss": pure(module, "loss", as_batch)}
        if hasattr(module, "correct"):
            correct = pure(module, "correct", as_batch)
            measures["accuracy"] = lambda params, batch: correct(params, batch).double().mean()
        self._measures = {name: masked(measure) for name, measure in measures.items()}

    def of_clients(self, params: Params, data: SampleData) -> Quality:
        """Measure on each client's samples one model a client, or the same for all.

        Args:
            params: each ``(C, ...)``, or ``(1, ...)`` where all clients have the same.
            data: of C clients.
        """
        batches = MiniBatches(data, 1, _BATCH, None)
        found = {name: torch.zeros(len(data), dtype=torch.float64) for name in _NAMES}
        for number, rows in _side_by_side(data, batches.per_epoch):
            sizes = (data.lengths[rows] - number * _BATCH).clamp(max=_BATCH)
            for name, measure in self._measures.items():
                values = of_clients(measure, params, batches, rows, number).double()
                found[name].index_add_(0, rows, sizes * values)
        none = {name: torch.full_like(found[name], torch.nan) for name in _NAMES}
        means = {name: found[name] / data.lengths for name in self._measures}
        return Quality(**none | means)

    def held_out(self, params: Params, data: SplitSamples) -> Quality:
        """Measure on validation samples, or on the training samples of a client without any.

        NaN for those without samples of either kind; ``params`` as for `of_clients`.
        """
        valid = self.of_clients(params, data.valid)
        some = data.valid.lengths > 0
        if bool(some.all()):
            return valid
        train = self.of_clients(params, data.train)
        return Quality(
            torch.where(some, valid.loss, train.loss),
            torch.where(some, valid.accuracy, train.accuracy),
        )

    def of_models(self, params: Params, samples: Batch) -> Quality:
        """Measure C models on the same samples, as many at a time as there is memory for.

        Args:
            params: each ``(C, ...)``.
            samples: fields by name, each ``(n, ...)``.
        """
        count = len(next(iter(samples.values()), ()))
        n_models = len(next(iter(params.values())))
        found = {name: torch.full((n_models,), torch.nan, dtype=torch.float64) for name in _NAMES}
        for name, measure in self._measures.items() if count else ():
            total = torch.zeros(n_models, dtype=torch.float64)
            for start in range(0, count, _BATCH):
                part = {field: values[start : start + _BATCH] for field, values in samples.items()}
                size = len(next(iter(part.values())))
                total += size * self._on_one(measure, params, part, n_models).double()
            found[name] = total / count
        return Quality(**found)

    def _on_one(self, measure: Any, params: Params, part: Batch, n_models: int) -> Tensor:
        def shared(number: int, rows: Tensor) -> Batch:
            return {name: values.expand(len(rows), *values.shape) for name, values in part.items()}

        together = max(1, _NUMBERS // sum(values.numel() for values in part.values()))
        rows = torch.arange(n_models).split(together)
        return torch.cat([of_clients(measure, params, shared, some) for some in rows])


def _side_by_side(data: SampleData, n_batches: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Number of a batch, and which clients there is memory for to measure on theirs at a time.

    They are sorted by their samples, so that little is padded.
    """
    order = data.lengths.argsort(descending=True, stable=True)
    numbers = sum(values[:1].numel() for values in data.samples.values())  # in a sample
    for number in range(int(n_batches.max()) if len(data) else 0):
        rows = order[: int((n_batches > number).sum())]
        while rows.numel():
            longest = min(int(data.lengths[rows[0]]) - number * _BATCH, _BATCH)
            together = max(1, _NUMBERS // max(longest * numbers, 1))
            yield number, rows[:together]
            rows = rows[together:]
