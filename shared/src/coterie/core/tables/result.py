"""What is kept of a run on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coterie.core.files import write_json
from coterie.core.metrics.monitor import VALIDATION, of_start

NAN = float("nan")
Values = Sequence[float] | NDArray[np.float64]
"""One number a seed."""


@dataclass
class RunResult:
    """What tables need of a run; every number may be NaN where it is unknown.

    Attributes:
        metrics: numbers of the whole run by name, as ``test/recall@10``.
        clients: numbers of every client by name.
        curves: one number a round by name; NaN where a round has none.
        course: what every client measured in every round by name, rounds x clients.
        found: what else a paper measures; what is missing stays None.
        rounds: number of rounds.
        chosen_by: name of the curve by which the best round is chosen.
        lower_is_better: whether that is the round with the lowest value.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    clients: dict[str, list[float]] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)
    course: dict[str, list[list[float]]] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    rounds: int = 0
    chosen_by: str = ""
    lower_is_better: bool = False

    def write(self, path: Path) -> None:
        """Write JSON in one step.

        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        write_json(path, vars(self))  # asdict would copy every number before it is written

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{n: v if n == "found" else _with_nan(v) for n, v in content.items()})

    def note(self, scalars: dict[str, float]) -> None:
        """Add the numbers of one more round to the curves."""
        for name in dict.fromkeys((*self.curves, *scalars)):
            self.curves.setdefault(name, [NAN] * self.rounds).append(scalars.get(name, NAN))
        self.rounds += 1

    def curve(self, name: str) -> list[float]:
        """One number a round; NaN where there is none."""
        return self.curves.get(name, [NAN] * self.rounds)

    @property
    def measured(self) -> list[int]:
        """Numbers, from 1, of the rounds that were evaluated."""
        return [n for n, value in enumerate(self.curve(self.chosen_by), 1) if value == value]

    @property
    def best_round(self) -> int:
        """The (first) round that is best on validation data; 0 is what the run started from."""
        best = np.nanargmin if self.lower_is_better else np.nanargmax
        return int(best([self._of_start(self.chosen_by), *self.curve(self.chosen_by)]))

    def best(self, name: str) -> float:
        """A number of the best round."""
        best = self.best_round
        return self.curve(name)[best - 1] if best else self._of_start(name)

    def _of_start(self, name: str) -> float:
        """A number of the model before the first round; NaN where it was not measured."""
        known = name.startswith(VALIDATION)
        return next(iter(self.curve(of_start(name))), NAN) if known else NAN

    def last(self, name: str) -> float:
        """A number of the last round that was evaluated."""
        return self.curve(name)[self.measured[-1] - 1]

    def cumulative(self, name: str) -> list[float]:
        """Sum of a cost up to and with each round; a round without counts as 0."""
        return np.nancumsum(self.curve(name)).tolist()

    def total(self, name: str) -> float:
        """Sum of a cost over the run; NaN where it was never noted."""
        known = [value for value in self.curve(name) if value == value]
        return math.fsum(known) if name in self.curves else NAN


Make = Callable[[Any], RunResult]
"""Makes a result of its (pickled) argument, in a worker: a function of a module's top level."""


def column(results: Sequence[RunResult], metric: str) -> list[float]:
    """A number of the whole run, one value a seed; NaN where a run has none."""
    return [result.metrics.get(metric, NAN) for result in results]


def at_best(results: Sequence[RunResult], name: str) -> list[float]:
    """A number of each run's best round, one value a seed."""
    return [result.best(name) for result in results]


def known(values: Values) -> list[float]:
    """Leave out what is not a number.

    Example:
        >>> known([0.5, float("nan")])
        [0.5]
    """
    return [value for value in values if value == value]


def _with_nan(content: Any) -> Any:
    """Turn None, which stands for NaN in JSON, back into it."""
    if isinstance(content, dict):
        return {name: _with_nan(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_with_nan(value) for value in content]
    return NAN if content is None else content
