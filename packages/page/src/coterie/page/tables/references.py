"""The trivial baseline of Table 1: the class that is most frequent in training."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.tables.result import RunResult
from coterie.page.data.task import Task
from coterie.page.experiment import Experiment
from coterie.page.settings.run import Settings
from coterie.page.tables.runs import CHOSEN_BY, GLOBAL, LOCAL, OTHERS

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
