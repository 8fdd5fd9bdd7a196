"""How good a model is on samples: mean loss and accuracy, or what the module itself measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData, Samples
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.alone import trained_alone
from coterie.core.local_training.fit import of_clients
from coterie.core.local_training.losses import AsBatch, Batch, Loss, MethodOf, masked
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.quality import MeasuresItself, Quality

_BATCH = 1000  # samples of a model at a time
_NUMBERS = 1 << 22  # in the samples of models measured together; layers make many times as many


class Evaluator:
    """Measure models of one form.

    Args:
        module: has ``loss(batch)``, a mean over samples, and for the accuracy ``correct(batch)``,
            ``(B,)`` bool; or says itself how it is measured
            (`coterie.core.methods.kit.quality.MeasuresItself`). It is measured in evaluation mode.
        as_batch: see `coterie.core.local_training.losses.MethodOf`.
    """

    def __init__(self, module: nn.Module, as_batch: AsBatch | None = None) -> None:
        alone = trained_alone(module)

        def made(method: str) -> Any:
            if alone:
                return MethodOf(module, method, False, as_batch)
            return MethodOf(module, method, as_batch=as_batch)

        self._means: dict[str, Loss] = {}
        self._whole: Callable[[Params, Batch], Batch] | None = None
        if isinstance(module, MeasuresItself):
            self._itself: MeasuresItself = module
            self._whole = made("predictions")
        else:
            self._means["loss"] = made("loss")
            if hasattr(module, "correct"):
                correct = made("correct")
                self._means["accuracy"] = lambda params, batch: (
                    correct(params, batch).double().mean()
                )
        self._one_by_one = alone or self._whole is not None

    def of_clients(self, params: Params, data: Samples) -> Quality:
        """Measure on each client's samples one model a client, or the same for all.

        Args:
            params: each ``(C, ...)``, or ``(1, ...)`` where all clients have the same; running
                statistics of the module among them.
            data: of C clients.
        """
        if self._one_by_one or not isinstance(data, SampleData):
            places = torch.arange(len(data)).split(1) if len(data) else ()  # none is one empty part
            parts = [data] if len(data) == 1 else map(data.take, places)
            return self._stacked(
                [self._alone(_of_client(params, row), part) for row, part in enumerate(parts)]
            )
        batches = data.batches(1, _BATCH, None)
        found = {name: torch.zeros(len(data), dtype=torch.float64) for name in self._means}
        measures = {name: masked(measure) for name, measure in self._means.items()}
        for number, rows in _side_by_side(data, batches.per_epoch):
            sizes = (data.lengths[rows] - number * _BATCH).clamp(max=_BATCH)
            for name, measure in measures.items():
                values = of_clients(measure, params, batches, rows, number).double()
                found[name].index_add_(0, rows, sizes * values)
        return Quality({name: total / data.lengths for name, total in found.items()})

    def held_out(self, params: Params, data: SplitSamples) -> Quality:
        """Measure on validation samples, or on the training samples of a client without any.

        NaN for those without samples of either kind; ``params`` as for `of_clients`.
        """
        valid = self.of_clients(params, data.valid)
        some = data.valid.lengths > 0
        if bool(some.all()):
            return valid
        train = self.of_clients(params, data.train).values
        return Quality({n: torch.where(some, v, train[n]) for n, v in valid.values.items()})

    def of_models(self, params: Params, samples: Batch) -> Quality:
        """Measure C models on the same samples, as many at a time as there is memory for.

        Args:
            params: each ``(C, ...)``.
            samples: fields by name, each ``(n, ...)``; none gives NaN.
        """
        count = len(next(iter(samples.values()), ()))
        n_models = len(next(iter(params.values())))
        if self._one_by_one and count:
            data = SampleData.from_clients([samples])
            models = (_of_client(params, row) for row in range(n_models))
            return self._stacked([self._alone(model, data) for model in models])
        found = {
            name: torch.full((n_models,), torch.nan, dtype=torch.float64) for name in self._names
        }
        for name, mean in self._means.items() if count else ():
            measure, total = masked(mean), torch.zeros(n_models, dtype=torch.float64)
            for start in range(0, count, _BATCH):
                part = {field: values[start : start + _BATCH] for field, values in samples.items()}
                size = len(next(iter(part.values())))
                total += size * self._on_one(measure, params, part, n_models).double()
            found[name] = total / count
        return Quality(found)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self._means) if self._whole is None else self._itself.measure_names

    @torch.no_grad()
    def _alone(self, params: Params, data: Samples) -> dict[str, Tensor]:
        """Measure one model on the samples of one client, batch by batch; each ``()``."""
        count = int(data.lengths[0])
        if not count:
            return {name: torch.tensor(torch.nan, dtype=torch.float64) for name in self._names}
        batches, first = data.batches(1, _BATCH, None), torch.tensor([0])
        sums, kept = dict.fromkeys(self._means, torch.zeros((), dtype=torch.float64)), []
        for number in range(int(batches.steps[0])):
            batch = {name: values[0] for name, values in batches(number, first).items()}
            size = len(next(iter(batch.values())))
            for name, measure in self._means.items():
                sums[name] = sums[name] + size * measure(params, batch).double()
            if self._whole is not None:
                kept.append(self._whole(params, batch))
        found = {name: total / count for name, total in sums.items()}
        if kept:
            joined = {name: torch.cat([part[name] for part in kept]) for name in kept[0]}
            found |= {n: v.double() for n, v in self._itself.measures(joined).items()}
        return found

    def _stacked(self, found: list[dict[str, Tensor]]) -> Quality:
        none = torch.zeros(0, dtype=torch.float64)
        return Quality(
            {n: torch.stack([one[n] for one in found]) if found else none for n in self._names}
        )

    def _on_one(self, measure: Any, params: Params, part: Batch, n_models: int) -> Tensor:
        def shared(number: int, rows: Tensor) -> Batch:
            return {name: values.expand(len(rows), *values.shape) for name, values in part.items()}

        together = max(1, _NUMBERS // sum(values.numel() for values in part.values()))
        rows = torch.arange(n_models).split(together)
        return torch.cat([of_clients(measure, params, shared, some) for some in rows])


def _of_client(params: Params, row: int) -> Params:
    """Parameters of one client; those with one row are the same for all."""
    return {name: value[row if len(value) > 1 else 0] for name, value in params.items()}


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
