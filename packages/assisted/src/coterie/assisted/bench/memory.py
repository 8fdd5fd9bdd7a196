"""The largest memory of a round, measured in a process of its own."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from coterie.assisted.bench.rounds import Rounds
from coterie.assisted.settings.run import Settings
from coterie.core.bench.memory_use import forget_peak, most_resident, resident
from coterie.core.bench.timing import in_a_process
from coterie.core.settings.schema import changed, values_of

_OUTSIDE = ("run.", "logger.", "trainer.")


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
