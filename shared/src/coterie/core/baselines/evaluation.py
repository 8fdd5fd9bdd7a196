"""How good a model is on samples: mean loss, and accuracy where the module can tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.data.samples import MiniBatches, SampleData
from coterie.core.data.split_samples import SplitSamples
from coterie.core.local import Batch, Params, masked, of_clients, pure
from coterie.core.seeding import Key

_BATCH = 1000  # samples of a model that is measured alone
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
        as_batch: see `coterie.core.local.pure`.
    """

    def __init__(
        self, module: nn.Module, as_batch: Callable[[dict[str, Tensor]], Any] | None = None
    ) -> None:
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
        nobody = torch.full((len(data),), torch.nan, dtype=torch.float64)
        found = {"loss": nobody, "accuracy": nobody.clone()}
        rows = data.lengths.nonzero().flatten()
        if rows.numel():
            everything = MiniBatches(data, 1, None, Key(torch.zeros_like(data.ids)))
            for name, measure in self._measures.items():
                values = of_clients(measure, params, everything, rows)
                found[name] = nobody.index_copy(0, rows, values.double())
        return Quality(**found)

    def held_out(self, params: Params, data: SplitSamples) -> Quality:
        """Measure on validation samples, or on the training samples of a client without any.

        Args:
            params: each ``(C, ...)``, or ``(1, ...)`` where all clients have the same.
            data: of C clients; NaN for those without samples of either kind.
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
        found = {
            name: torch.full((n_models,), torch.nan, dtype=torch.float64)
            for name in ("loss", "accuracy")
        }
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


__all__ = ["Evaluator", "Quality"]
