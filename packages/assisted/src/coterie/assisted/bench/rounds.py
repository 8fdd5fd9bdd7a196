"""Single rounds of a run: whole ones, watched, and ones without training and prediction."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from coterie.assisted.aae.network import AAE, Params
from coterie.assisted.aae.pattern import Pattern
from coterie.assisted.bench.training import ADAM_BYTES, operations
from coterie.assisted.client import Organisation
from coterie.assisted.experiment import Experiment
from coterie.assisted.learner import Learner
from coterie.assisted.settings.run import Settings
from coterie.assisted.view import View
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed
from coterie.core.tensors.keys import Key

_NEVER = 1 << 30


@dataclass(frozen=True)
class Work:
    """What an organisation trained in a round.

    Attributes:
        network: its sizes.
        steps: of Adam.
        sparse: floating-point operations of its products at observed cells.
        dense: the same, were all outputs computed.
        seconds: of the processor.
    """

    network: AAE
    steps: int
    sparse: float
    dense: float
    seconds: float

    @property
    def moved(self) -> float:
        """Bytes that Adam reads and writes."""
        return float(ADAM_BYTES * self.network.n_parameters * self.steps)


class Watched(Organisation):
    """Notes what is trained, all organisations one after the other, in ``trained``."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.trained: list[Work] = []

    def fitted(
        self, learner: Learner, view: View, pattern: Pattern, values: Tensor, key: Key
    ) -> Params:
        """Train, and note it."""
        began = time.process_time()
        params = super().fitted(learner, view, pattern, values, key)
        seconds = time.process_time() - began
        network, plan = learner.network(view.n_columns), learner.plan
        inputs = learner.inputs(view.first_column)
        sparse, dense = (plan.epochs * each for each in operations(network, inputs, pattern))
        rows = int((pattern.columns.lengths > 0).sum())
        steps = plan.epochs * -(-rows // plan.batch_rows)
        self.trained.append(Work(network, steps, sparse, dense, seconds))
        return params


class Idle(Organisation):
    """Neither trains nor predicts: it keeps newly drawn parameters and answers zeros."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._drawn: dict[Any, Params] = {}

    def fitted(
        self, learner: Learner, view: View, pattern: Pattern, values: Tensor, key: Key
    ) -> Params:
        """Give parameters that are drawn once for networks of equal sizes."""
        network = learner.network(view.n_columns)
        sizes = tuple(network.shapes.items())
        if sizes not in self._drawn:
            self._drawn[sizes] = network.start(key, values.dtype)
        return self._drawn[sizes]

    def outputs(self, learner: Learner, view: View, params: Params, pattern: Pattern) -> Tensor:
        """Give zeros, ``(n,)``."""
        return learner.data.train.values.new_zeros(pattern.nnz)


class Rounds:
    """A run of MTAL, a round at a time, that never ends.

    Args:
        settings: of the run; method and length are chosen here.
        kind: the client half.
        experiment: makes the data.
    """

    def __init__(
        self,
        settings: Settings,
        kind: type[Organisation] = Watched,
        experiment: type[Experiment] = Experiment,
    ) -> None:
        endless = {"method": "mtal", "rounds": _NEVER, "patience": _NEVER}
        self.experiment = experiment(changed(settings, endless))
        self.client: Any = kind(self.experiment.settings)
        federation = self.experiment.federation()
        self.run = FederatedRun(replace(federation, client=self.client))
        self.advance = self.run.advance

    @property
    def source(self) -> str:
        """The data, and the number of organisations, for people."""
        return f"{self.experiment.source}, {len(self.experiment.organisations)} organisations"
