"""What the tables share: which methods there are, how each is run, what its numbers depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.errors import UserError
from coterie.core.methods.registry import METHODS
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed
from coterie.core.tables import study
from coterie.core.tables.following import follow
from coterie.core.tables.result import Make, RunResult
from coterie.page.certificate.of_run import before_learning, certify_run
from coterie.page.data.task import Task
from coterie.page.experiment import Experiment
from coterie.page.paper import PAPER
from coterie.page.published import departures
from coterie.page.readings import resolve
from coterie.page.settings import DEMONSTRATION, Settings
from coterie.page.tasks import OF_TASK, TASKS

CHOSEN_BY = "eval/accuracy"
GLOBAL, LOCAL, OTHERS = "server_accuracy", "personal_accuracy", "global_accuracy"
"""The two columns of the paper's tables, and the global model on each client's samples."""
COLUMNS = {"global": f"test/{GLOBAL}", "local": f"test/{LOCAL}"}
"""The columns of the paper's tables, and what is measured for them in the best round."""


def train(settings: Settings) -> RunResult:
    """Run a federation to its end.

    What is found beside the curves: ``settled``, whether the run ended before the last round, as
    the game had come to rest; ``certificate``, what the certificate says of the run's end, and
    ``certificate_before``, of the run before anything was learnt, where they are asked for.
    """
    module = FederatedRun(Experiment(settings).federation())
    result = follow(module)
    result.found["settled"] = module.round < settings.rounds
    if settings.method == "page" and settings.certify:
        for name, run in (("certificate_before", before_learning(module)), ("certificate", module)):
            found = certify_run(run, settings.certificate, progress=False)
            result.found[name] = found.to_dict()
    return result


# The trivial baseline of Table 1: the class that is most frequent in training.

MAJORITY = "majority class"


def majority_run(settings: Settings) -> RunResult:
    """Measure the majority classes of a task, as a run of one round."""
    return majority(Experiment(settings).task)


def majority(task: Task) -> RunResult:
    """Guess the most frequent class of all training samples, or of the client's own.

    ``server_…`` is the common guess on the server's samples, ``global_…`` the same on each
    client's, ``personal_…`` each client's own guess on its own.
    """
    counts = class_counts(task.clients.train, task.n_classes)
    common, own = counts.sum(0).argmax(), counts.argmax(1)
    found: dict[str, float] = {}
    held = {"eval": (task.server_valid, task.clients.valid)}
    held["test"] = (task.server_test, task.clients.test)
    for part, (server, clients) in held.items():
        if len(server.get("y", ())):
            found[f"{part}/{GLOBAL}"] = float((server["y"] == common).double().mean())
        found[f"{part}/{OTHERS}"] = _mean_share(clients, common.expand(len(clients)))
        found[f"{part}/{LOCAL}"] = _mean_share(clients, own)
    result = RunResult(chosen_by=CHOSEN_BY)
    result.note(found | {CHOSEN_BY: 0.0})  # there is nothing to choose
    return result


def class_counts(data: SampleData, n_classes: int) -> Tensor:
    """Samples of each class of each client, ``(C, n_classes)`` int64."""
    rows = torch.arange(len(data)).repeat_interleave(data.lengths)
    flat = torch.bincount(rows * n_classes + data.samples["y"], minlength=len(data) * n_classes)
    return flat.reshape(len(data), n_classes)


def _mean_share(data: SampleData, guess: Tensor) -> float:
    """Mean over the clients with samples of how many of theirs have the class guessed."""
    right = (data.samples["y"] == guess.repeat_interleave(data.lengths)).double()
    share = torch.segment_reduce(right, "mean", lengths=data.lengths)
    return float(share[data.lengths > 0].mean())


NAMES = {
    "local": "local only",
    "central": "central",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "dap-fl": "Dap-FL",
    "fedrecon": "FedRECON",
    "pfedme": "pFedMe",
    "ditto": "Ditto",
    "fedala": "FedALA",
    "fed-rod": "Fed-ROD",
    "fedamp": "FedAMP",
    "page": "PAGE",
    "fedavg+branch": "FedAvg + branch",
    "scaffold+branch": "SCAFFOLD + branch",
    "feddyn+branch": "FedDyn + branch",
    "decoupled": "PAGE (decoupled)",
}
ROUNDS = 1000
OWN = "page"
DECOUPLED = "decoupled"
BESIDE: dict[str, dict[str, Any]] = {
    "fedavg+branch": {"method": "fedavg", "branch.use": True},
    "scaffold+branch": {"method": "scaffold", "branch.use": True},
    "feddyn+branch": {"method": "feddyn", "branch.use": True},
    DECOUPLED: {"method": OWN, "reading": DECOUPLED},
}
"""Rows that are not the paper's: another reading, and methods with the same personal branch."""
_OF_DECOUPLED = ("game.generality", "game.drift", "game.alpha", "branch.use")
_PAPERS_GAME = {"reading": "recommended"} | dict.fromkeys(_OF_DECOUPLED)
BOUNDS = ("local", "central")
TRADITIONAL = ("fedavg", "fedprox", "scaffold", "feddyn", "dap-fl")
PERSONALISED = ("fedrecon", "pfedme", "ditto", "fedala", "fed-rod", "fedamp")
_NEEDS_BODY = {"fedrecon"}
_OF_PAGE = ("game", "client_agent", "server_agent", "certify", "certificate")


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what the method does not read to one value.

    Example:
        >>> essential(Settings(method="fedavg", reading="literal")).reading
        'recommended'
    """
    own = METHODS[settings.method].section if settings.method in METHODS else None
    unread = {method.section for method in METHODS.values()} - {own, None}
    if settings.method in METHODS:
        unread |= set(_OF_PAGE)
        settings = replace(settings, reading="recommended")
    elif not settings.certify:
        unread.add("certificate")
    elif not settings.has_leaders:  # nobody is left to test
        unread |= {"certify", "certificate"}
    if not (settings.branch.use or settings.reading == DECOUPLED):
        unread.add("branch")
    given: dict[str, Any] = {str(name): getattr(Settings(), str(name)) for name in unread}
    return resolve(replace(settings, **given))


def digest(task: Task) -> str:
    """Hash what clients and server hold, where it was read; what is drawn follows from settings."""
    entry = next((entry for entry in TASKS if entry.name == task.name), None)
    if entry is None or not entry.files:
        return ""
    clients = task.clients
    parts = [part.samples for part in (clients.train, clients.valid, clients.test)]
    found = hashlib.sha256()
    for samples in (*parts, task.server_valid, task.server_test):
        for name in sorted(samples):
            found.update(samples[name].contiguous().numpy().tobytes())
    return found.hexdigest()


def as_row(settings: Settings, name: str) -> Settings:
    """The settings of a row: a method by its name, or one of `BESIDE`.

    What the user says of the reading decoupled is for its own row; the others are the paper's.

    Example:
        >>> as_row(Settings(), "scaffold+branch").branch.use, as_row(Settings(), "ditto").method
        (True, 'ditto')
    """
    if settings.reading == DECOUPLED and name != DECOUPLED:
        settings = changed(settings, _PAPERS_GAME)
    return changed(settings, BESIDE.get(name, {"method": name}))


class Study(study.Study[Settings]):
    """The runs behind a table or figure."""

    paper, names = PAPER, NAMES
    train, essential = train, essential
    references: ClassVar[Mapping[str, Make]] = {MAJORITY: majority_run}

    @cached_property
    def settings(self) -> Settings:
        """As the user gave them, with as many rounds as the public code plays if nobody says.

        Raises:
            UserError: the user named a method, which would have no effect.
        """
        settings: Settings = self.configuration.settings
        given = self.configuration.given
        if "method" in given.flags:
            raise UserError(
                "the tables and figures of page say themselves which methods they run: leave out "
                "--method, or train one method by coterie train page --method NAME"
            )
        said = "rounds" in given.flags or given.preset or given.configs
        if said or settings.rounds != DEMONSTRATION:
            return settings
        return replace(settings, rounds=ROUNDS)

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.settings.model.name or OF_TASK.get(self.data, "softmax")

    @cached_property
    def n_clients(self) -> int:
        """N."""
        return len(self._task.clients)

    @property
    def setup(self) -> list[str]:
        """Say what is trained, and in what clients, data and network are not the paper's."""
        train, rounds = self.settings.train, self.settings.rounds
        text = f"{self.n_clients} clients train {self.network}, at most {rounds} rounds of "
        text += f"{train.epochs} local epochs with batches of {train.batch_size}"
        others = departures(self.settings)
        if others:
            text += f". Not as in the paper (in brackets): {', '.join(others)}; so its numbers "
            text += "stand beside ours for the order of the rows alone"
        return [f"{text}."]

    def file(self, which: str) -> str:
        """Name of the file of "table1" or "figure2", with the choices that it depends on."""
        words = [super().file(which)]
        if self.settings.model.name not in (None, OF_TASK.get(self.data)):
            words.append(self.network)
        if self.settings.reading != "recommended":
            words.append(self.settings.reading)
        if self.settings.game.drift is not None:
            words.append(self.settings.game.drift)
        for name, value in sorted(self.configuration.given.flags.items()):
            if name.endswith("_skew"):
                words.append(f"{name.removeprefix('data.').replace('_', '-')}-{value:g}")
        return "-".join(words)

    def present(self, names: Iterable[str]) -> list[str]:
        """Those of the methods that the network allows."""
        lacking = _NEEDS_BODY if self.network == "softmax" else ()
        return [name for name in names if name not in lacking]

    def stem(self, settings: Settings) -> str:
        """Begin the names of files of a run by its method, or its row that is not the paper's."""
        if settings.method == OWN:
            return DECOUPLED if settings.reading == DECOUPLED else OWN
        return f"{settings.method}+branch" if settings.branch.use else settings.method

    def methods(
        self, title: str, settings: Settings, methods: Iterable[str]
    ) -> dict[str, list[RunResult]]:
        """Run several methods, or rows of `BESIDE`, with the same settings."""
        return self.run_all(title, {name: as_row(settings, name) for name in methods})

    @property
    def own(self) -> str:
        """The row of PAGE in the reading that the user names."""
        return DECOUPLED if self.settings.reading == DECOUPLED else OWN

    @property
    def beside(self) -> list[str]:
        """Rows that are not the paper's."""
        return self.present(BESIDE)

    @property
    def federated(self) -> list[str]:
        """Every federated method: those of the paper in its order, and PAGE."""
        return self.present((*TRADITIONAL, *PERSONALISED, OWN))

    def variant(self, method: str = OWN, **data: Any) -> Settings:
        """The study's settings with another method, and changes in the section ``data``."""
        settings = as_row(self.settings, method)
        return replace(settings, data=replace(settings.data, **data))

    def bare(self, name: str, settings: Settings) -> Settings:
        """Keep what references read: the task."""
        return essential(replace(settings, method="fedavg"))

    @cached_property
    def digest(self) -> str:
        """Hash of what the task holds."""
        return digest(self._task)

    @cached_property
    def _task(self) -> Any:
        return Experiment(self.settings).task
