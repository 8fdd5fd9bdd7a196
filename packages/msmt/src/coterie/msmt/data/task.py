"""A multi-scenario multi-task data set: the form of its samples, and the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples


@dataclass(frozen=True)
class Schema:
    """What a network must know of the samples; the same for all scenarios.

    A batch is a dict: ``ids`` ``(B, F)`` whole numbers of any integer dtype, one for each
    categorical field, 0 for unknown; ``numbers`` ``(B, P)`` floats; ``scenario`` ``(B,)`` int64;
    ``labels`` ``(B, T)`` uint8, 0 or 1.

    Attributes:
        tasks: names of the T tasks, as ``ctr`` and ``ctcvr``.
        scenarios: names of the S scenarios; scenario j is client j.
        vocabularies: ``(F,)`` how many ids each categorical field has, 0 included.
        n_numbers: P, numerical fields.
        funnel: whether a label of 1 implies all labels of the tasks before (click, conversion).

    Example:
        >>> schema = Schema(("ctr", "ctcvr"), ("NL", "ES"), (10, 4), 3, funnel=True)
        >>> schema.n_tasks, Schema.from_plain(schema.to_plain()) == schema
        (2, True)
    """

    tasks: tuple[str, ...]
    scenarios: tuple[str, ...]
    vocabularies: tuple[int, ...]
    n_numbers: int
    funnel: bool = False

    @property
    def n_tasks(self) -> int:
        """T."""
        return len(self.tasks)

    @property
    def n_scenarios(self) -> int:
        """S."""
        return len(self.scenarios)

    @property
    def n_inputs(self) -> int:
        """Embeddings in a network's input: one a categorical field, one of all numbers."""
        return len(self.vocabularies) + (self.n_numbers > 0)

    def to_plain(self) -> dict[str, Any]:
        """Give it as plain values, for the public card."""
        return {
            "tasks": list(self.tasks),
            "scenarios": list(self.scenarios),
            "vocabularies": list(self.vocabularies),
            "n_numbers": self.n_numbers,
            "funnel": self.funnel,
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Schema:
        """Read it from a public card."""
        return Schema(
            tuple(plain["tasks"]),
            tuple(plain["scenarios"]),
            tuple(plain["vocabularies"]),
            plain["n_numbers"],
            plain["funnel"],
        )


# A multi-scenario multi-task data set, cut into train, validation and test of each scenario.


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
