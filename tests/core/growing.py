"""A toy of assisted learning: each round every party, and the server, appends a model it fitted."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from tests.in_process import OpenCohort, cohort_in_process
from torch import Tensor

from coterie.core.federation.federation import Federation
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.metrics.monitor import Monitor
from coterie.core.protocol.client import Client
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Down, ListStep, Private, Reveals, Up, carries, leaves
from coterie.core.protocol.server import Decision, Server
from coterie.core.run.checkpoint import LAST
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.core.training.callbacks.checkpoints import Checkpoints
from coterie.core.training.trainer import fit

MONITOR = Monitor("eval/loss", lower_is_better=True)


@dataclass(frozen=True)
class Model:
    """What is appended: tensors, rows of unequal length, a plain value, a dict."""

    weights: dict[str, Tensor]
    seen: Ragged
    rate: float


@dataclass(frozen=True)
class Party(Private):
    """A model a round, and how often it was asked."""

    models: Appended[Model]
    visits: int = 0


@dataclass(frozen=True)
class Target(Down):
    """What the parties fit to."""

    residual: Tensor = carries("the residual")  # (4,)
    what: str = carries("what a test wants done", default="fine")


@dataclass(frozen=True)
class Fitted(Up):
    """A party's answer."""

    fitted: Tensor = leaves("fitted residual", reveals=Reveals.PARAMETERS)  # (4,)


FIT = ListStep("fit", Target, Fitted)
LOOK = ListStep("look", Target, None)


@dataclass(frozen=True)
class Place:
    """Local data of one party."""

    id: int


@dataclass(frozen=True)
class Places:
    """Local data of all parties."""

    ids: Tensor

    def take(self, index: Tensor) -> Places:
        """A part of them."""
        return Places(self.ids[index])

    def __getitem__(self, place: int) -> Place:
        return Place(int(self.ids[place]))


class PartyClient(Client[Party, Place]):
    """Fits a model to the residual and to the model before."""

    form = "list"

    def __init__(self, size: int = 4) -> None:
        self.size = size

    def enrol(self, data: Place, key: Key) -> Party:
        return Party(Appended())

    @FIT
    def fit(self, down: Target, mine: Party, data: Place, key: Key) -> tuple[Fitted, Party]:
        """Append a model, in ways that a test may want."""
        before = mine.models[-1].weights["w"] if len(mine.models) else torch.zeros(self.size)
        weights = 0.5 * before + key.normal(self.size) * down.residual.sum()
        if down.what == "write newest":
            before.mul_(2.0)
        if down.what == "write oldest":
            mine.models[0].weights["w"].mul_(2.0)
        if data.id == 5 and down.what == "nan":
            weights = weights * math.nan
        model = Model({"w": weights, "b": weights[:1]}, Ragged.from_lists([[data.id], []]), 0.5)
        models = mine.models.append(model)
        return Fitted(weights[:4].nan_to_num()), Party(models, mine.visits + 1)

    @LOOK
    def look(self, down: Target, mine: Party, data: Place, key: Key) -> tuple[None, None]:
        """Use every model, change nothing."""
        total = sum(float(model.weights["w"].sum()) for model in mine.models)
        assert math.isfinite(total)
        return None, None


@dataclass(frozen=True)
class Collected:
    """What the server keeps: its own model of every round."""

    residual: Tensor
    models: Appended[dict[str, Tensor]]
    first: Appended[Tensor] | None = None


class Collector(Server[Collected]):
    """Asks for fits, subtracts their mean; party 5 fails in the third round."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def begin(self, key: Key) -> Collected:
        return Collected(key.normal(4), Appended())

    def round(self, state: Collected, cohort: Cohort, key: Key) -> Collected:
        cohort.enrol()
        what = "nan" if len(state.models) == 2 else "fine"
        replies = cohort.ask(FIT, Target(state.residual, what))
        mean = torch.stack([up.fitted for up in replies.ups.values()]).mean(0)
        residual = state.residual - 0.1 * mean
        loss = abs(len(state.models) - 0.6 * self.rounds)  # best in the middle of the run
        cohort.journal.scalar("eval/loss", loss)
        # A view of a larger tensor, as a row of a table is.
        models = state.models.append({"mean": torch.stack([mean] * 5000)[3]})
        first = Appended([mean]) if state.first is None else state.first
        return Collected(residual, models, first)

    def stop(self, state: Collected, history: Sequence[dict[str, float]]) -> Decision:
        return "end" if len(history) >= self.rounds else "go"


def run_of(rounds: int = 8, ids: tuple[int, ...] = (2, 5, 9)) -> FederatedRun:
    """A run at its start."""
    blocks = [Places(torch.tensor(ids))]
    return FederatedRun(Federation(Collector(rounds), PartyClient(), blocks, rounds=rounds))


def train(folder: Path, rounds: int = 8) -> FederatedRun:
    """Train to the end, from the last checkpoint of a folder if it has one."""
    run = run_of(rounds)
    last = folder / LAST
    fit(run, [Checkpoints(folder, 1, MONITOR)], ckpt_path=last if last.is_file() else None)
    return run


def train_in_child(folder: str, rounds: int) -> None:
    """The same, as what a process runs."""
    torch.set_num_threads(1)
    train(Path(folder), rounds)


def train_and_die(folder: str, rounds: int, call: int, name: str) -> None:
    """The same, killed at the given call (1 is the first) of a function of `os`."""
    original, calls = getattr(os, name), count(1)

    def counted(*words: object) -> object:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*words)

    setattr(os, name, counted)
    train_in_child(folder, rounds)


def grown_cohort(entries: int, size: int = 4, ids: tuple[int, ...] = (2, 9)) -> OpenCohort:
    """Parties with so many models each."""
    data = Places(torch.tensor(ids))
    store: PrivateStore[Party] = PrivateStore(stacked=False)
    for client in data.ids.split(1):
        weights = [{"w": torch.ones(size), "b": torch.ones(1)} for _ in range(entries)]
        models = [Model(each, Ragged.from_lists([[1]]), 0.5) for each in weights]
        store.enrol(client, Party(Appended(models)))
    parts = data, store, Key.from_seed(0), (0, 1), Ledger(), Journal()
    return cohort_in_process(PartyClient(size), *parts)
