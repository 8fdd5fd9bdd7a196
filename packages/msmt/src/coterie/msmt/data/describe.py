"""Say in numbers what the scenarios of a task are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from coterie.core.data.samples.samples import SampleData
from coterie.msmt.data.task import Task


def describe(task: Task) -> list[dict[str, Any]]:
    """Tabulate the scenarios, a row each.

    A row has the numbers of samples ``train``, ``valid`` and ``test``, the share of each label in
    training, as ``click rate``, and, where the true probabilities are known, what a perfect network
    would reach on the test samples, as ``click best AUC`` (None where it is not defined).
    """
    clients = task.clients
    parts = {"train": clients.train, "valid": clients.valid, "test": clients.test}
    rows: list[dict[str, Any]] = []
    for place, scenario in enumerate(task.schema.scenarios):
        row: dict[str, Any] = {"scenario": scenario}
        row |= {name: int(part.lengths[place]) for name, part in parts.items()}
        rates = _labels(clients.train, place).double().mean(0).tolist()
        row |= {f"{label} rate": rate for label, rate in zip(task.schema.tasks, rates, strict=True)}
        rows.append(row | _best(task, place))
    return rows


def undefined(task: Task) -> list[str]:
    """Say, a line each, where a part of a scenario holds one class only and so has no AUC."""
    found = []
    for name in ("valid", "test"):
        part: SampleData = getattr(task.clients, name)
        for place, scenario in enumerate(task.schema.scenarios):
            labels = _labels(part, place)
            positive = labels.long().sum(0)
            one_class = ((positive == 0) | (positive == len(labels))).tolist()
            lacking = [t for t, is_one in zip(task.schema.tasks, one_class, strict=True) if is_one]
            if lacking:
                what = "has one class only" if len(labels) else "is empty"
                found.append(
                    f"{name} part of scenario '{scenario}' {what}: no AUC of {', '.join(lacking)}"
                )
    return found


def _best(task: Task, place: int) -> dict[str, Any]:
    if task.truth is None:
        return {}
    labels, part = _labels(task.clients.test, place), task.clients.test
    truth = task.truth[int(part.offsets[place]) : int(part.offsets[place + 1])]
    return {
        f"{name} best AUC": _auc(truth[:, number], labels[:, number])
        for number, name in enumerate(task.schema.tasks)
    }


def _auc(score: Tensor, label: Tensor) -> float | None:
    if len(label.unique()) < 2:
        return None
    return float(binary_auroc(score, label.long()))


def _labels(part: SampleData, place: int) -> Tensor:
    """Labels of a scenario, ``(n, T)``."""
    start, stop = part.offsets[place : place + 2].tolist()
    labels: Tensor = part.samples["labels"][start:stop]
    return labels if len(labels) else torch.zeros(0, labels.shape[1], dtype=torch.uint8)
