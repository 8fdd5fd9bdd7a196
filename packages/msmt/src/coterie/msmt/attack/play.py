"""The first rounds of a run once more, with an ear in between, and what a reader makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from coterie.core.data.samples.samples import batch_counts
from coterie.core.local_training.alone import mixes_samples
from coterie.core.privacy.accountant import epsilon, price
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key
from coterie.msmt.attack.candidates import Candidates
from coterie.msmt.attack.known import Seen, knowledge_of
from coterie.msmt.attack.occurrence import LocalSteps, Occurrence
from coterie.msmt.attack.overheard import Ear
from coterie.msmt.attack.reader import CategoryReader, MemberReader, Members, still_tables
from coterie.msmt.experiment import Experiment
from coterie.msmt.settings.run import Settings

_PULLING = ("fedprox", "fedamp")
"""Methods that pull all parameters towards what was received."""


@dataclass(frozen=True)
class Reading:
    """What was read after some rounds, and what the run was worth by then.

    Attributes:
        rounds: how many.
        members: by scenario.
        categories: by scenario; empty where no embeddings are shared.
        epsilon: ε of a scenario against the server; infinite where nothing is guaranteed.
        test_auc: mean over tasks and scenarios.
    """

    rounds: int
    members: dict[int, Members]
    categories: dict[int, Occurrence]
    epsilon: float
    test_auc: float


@dataclass(frozen=True)
class Played:
    """What was read in a run after the rounds asked for, and the L2 norm of the largest upload."""

    readings: list[Reading]
    largest: float


def play(
    experiment: Experiment,
    rounds: Sequence[int],
    asked: dict[int, Candidates],
    key: Key,
    told: Callable[[str], None] = lambda label: None,
) -> Played:
    """Play a run from its start, overhear it and read.

    Args:
        experiment: the run; what is heard depends on its settings and data alone.
        rounds: after which to judge, ascending.
        asked: candidates by scenario.
        key: of the reader.
        told: called after each round with its name.
    """
    settings = experiment.settings
    run = FederatedRun(experiment.federation())
    ear = Ear(run.exchange)
    run.exchange = ear
    reader = _Reader(run, settings, asked, key)
    readings, largest, releases = [], 0.0, 0
    for number in range(1, rounds[-1] + 1):
        run.advance()
        releases += price(settings.privacy, run.journal.releases)
        heard = ear.emptied()
        largest = max([largest, *(one.norm() for one in heard)])
        seen = [each for one in heard if (each := reader.knowledge.hear(one)) is not None]
        reader.read(seen)
        if number in rounds:
            spent, test_auc = epsilon(settings.privacy, releases), _test_auc(experiment, run)
            readings.append(reader.judged(number, spent, test_auc))
            ear.emptied()
        told(f"round {number}")
    return Played(readings, largest)


def protected(experiment: Experiment, privacy: PrivacySettings) -> Experiment:
    """Make the experiment of the same samples with another protection.

    It is measured when it is asked to alone, which changes nothing else and saves half of the time.
    """
    settings = experiment.settings
    train = replace(settings.train, evaluate_every=settings.rounds + 1)
    other = type(experiment)(replace(settings, privacy=privacy, train=train))
    other.task = experiment.task
    return other


class _Reader:
    """The server as a reader of all scenarios; of one without candidates there is no question."""

    def __init__(
        self, run: FederatedRun, settings: Settings, asked: dict[int, Candidates], key: Key
    ) -> None:
        server: Any = run.federation.server
        network = server.module
        self.knowledge = knowledge_of(server, run.server_state)
        self._train, self._asked = settings.train, asked
        self._least = 2 if mixes_samples(network) else 1
        local, first = _local(settings), self.knowledge.first
        still = still_tables(network, settings.method in _PULLING)
        self._members, self._categories = {}, {}
        for number, each in asked.items():
            self._members[number] = MemberReader(network, first, each, key)
            self._categories[number] = CategoryReader(
                local, settings.privacy, settings.train.keep_moments, still
            )

    def read(self, round_: Sequence[Seen]) -> None:
        """Read the uploads of a round; the order in which they came does not matter."""
        round_ = sorted(round_, key=lambda seen: seen.scenario)
        for seen in round_:
            if seen.scenario in self._asked:
                others = [each for each in round_ if each.scenario != seen.scenario]
                self._members[seen.scenario].read(seen, others)
                self._categories[seen.scenario].read(seen, self._steps(seen))

    def _steps(self, seen: Seen) -> int:
        count = torch.tensor([seen.samples])
        per_epoch = int(batch_counts(count, self._train.batch_size, self._least))
        return self._train.epochs * per_epoch

    def judged(self, rounds: int, spent: float, test_auc: float) -> Reading:
        """Judge what was read so far."""
        members = {number: each.found() for number, each in self._members.items()}
        categories = {}
        for number, each in self._categories.items():
            if (found := each.found(self._asked[number].occurs)) is not None:
                categories[number] = found
        return Reading(rounds, members, categories, spent, test_auc)


def _local(settings: Settings) -> LocalSteps:
    """How scenarios train, which everybody knows; the steps are those of an upload."""
    train = settings.train
    mu = settings.fedprox.mu if settings.method == "fedprox" else 0.0
    return LocalSteps(0, train.lr, train.weight_decay, train.optimizer, mu)


def _test_auc(experiment: Experiment, run: FederatedRun) -> float:
    who = "personal" if experiment.answer_is_own else "global"
    return run.retest().get(f"test/{who}_auc", math.nan)
