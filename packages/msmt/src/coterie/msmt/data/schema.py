"""The form of samples, which everybody may know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
