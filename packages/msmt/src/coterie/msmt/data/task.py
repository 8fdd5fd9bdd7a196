"""A multi-scenario multi-task data set, cut into train, validation and test of each scenario."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.msmt.data.schema import Schema


@dataclass(frozen=True)
class Task:
    """Samples of S scenarios, each a client.

    Attributes:
        name: of the data set, for people.
        schema: form of the samples.
        clients: samples of the scenarios with the fields of `Schema`: ``ids`` int32 ``(n, F)``,
            ``numbers`` float32 ``(n, P)``, ``scenario`` int64 ``(n,)``,
            ``labels`` uint8 ``(n, T)``.
        truth: ``(n_test, T)`` float64, the true probabilities of the test samples in their order,
            where the data are generated; the oracle.
        notes: what people should know of how it was read, a line each.
    """

    name: str
    schema: Schema
    clients: SplitSamples
    truth: Tensor | None = None
    notes: tuple[str, ...] = ()

    def lacks(self, method: str) -> str | None:
        """Say why a method cannot be trained on the samples where they lie; None if it can."""
        if method == "central" and not isinstance(self.clients.train, SampleData):
            return "it needs all samples in memory"
        return None
