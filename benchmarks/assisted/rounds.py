"""Single rounds of a run: watched, or without training; and what the first one takes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.assisted.training import ADAM_BYTES, operations
from benchmarks.core.machine import forget_peak, most_resident, resident
from benchmarks.core.timing import in_a_process
from coterie.assisted.aae.cells import Pattern
from coterie.assisted.aae.network import AAE, Params
from coterie.assisted.client import Organisation
from coterie.assisted.experiment import Experiment
from coterie.assisted.learner import Learner
from coterie.assisted.settings import Settings
from coterie.assisted.view import View
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed, values_of
from coterie.core.tensors.keys import Key

_NEVER = 1 << 30
_OUTSIDE = ("run.", "logger.", "trainer.")


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


@dataclass(frozen=True)
class Use:
    """What the first round took, with one epoch: memory does not depend on their number.

    Attributes:
        before: bytes resident before it: imports and data.
        most: bytes resident at its peak.
        seconds: of the processor.
        training: of these, seconds of an epoch of all organisations.
        models: bytes of the models that it leaves with the organisations.
    """

    before: int
    most: int
    seconds: float
    training: float
    models: int

    def seconds_of(self, epochs: int) -> float:
        """Processor seconds of a round of more epochs, by arithmetic."""
        return self.seconds + (epochs - 1) * self.training


def use_of(settings: Settings, what: str) -> Use:
    """Measure a round of a run in a process of its own.

    Raises:
        UserError: it failed, for lack of memory for instance.
    """
    values = {k: v for k, v in values_of(settings).items() if not k.startswith(_OUTSIDE)}
    return Use(**in_a_process(f"{__name__}:in_this_process", what, values))


def in_this_process(values: dict[str, Any]) -> dict[str, Any]:
    """Measure a round of the settings' data here."""
    return asdict(first_round(Rounds(changed(Settings(), {**values, "train.epochs": 1}))))


def first_round(rounds: Rounds) -> Use:
    """Run a first round of one epoch on one thread."""
    torch.set_num_threads(1)
    _ = rounds.experiment.organisations
    before = resident()
    forget_peak()
    began = time.process_time()
    rounds.advance()
    seconds, work = time.process_time() - began, rounds.client.trained
    training = sum(one.seconds for one in work)
    models = 4 * sum(one.network.n_parameters for one in work)
    return Use(before, most_resident(), seconds, training, models)
