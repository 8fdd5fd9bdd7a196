"""Say in numbers what the scenarios of a task are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData, Samples
from coterie.core.data.samples.streamed import StreamedSamples
from coterie.msmt.data.task import Task


def auc(score: Tensor, label: Tensor) -> Tensor:
    """Area under the ROC curve, ties counted half; NaN with a NaN score, or one class only.

    By ranks (Mann and Whitney), exact in float64: torchmetrics' is in float32, and its import takes
    a second of a scenario's process.

    Args:
        score: ``(n,)``.
        label: ``(n,)`` 0 or 1.

    Returns:
        ``()`` float64.

    Example:
        >>> auc(torch.tensor([0.1, 0.4, 0.4]), torch.tensor([0, 0, 1])).item()
        0.75
    """
    positive = int(label.sum())
    if not 0 < positive < len(label) or bool(score.isnan().any()):  # `unique` would rank NaN
        return torch.tensor(torch.nan, dtype=torch.float64)
    _, place, counts = score.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[place]
    above = ranks[label > 0].sum() - positive * (positive + 1) / 2
    return above / (positive * (len(label) - positive))


_AT_ONCE = 1 << 16  # samples


def describe(task: Task) -> list[dict[str, Any]]:
    """Tabulate the scenarios, a row each.

    A row has the numbers of samples ``train``, ``valid`` and ``test``, the share of each label in
    training, as ``click rate``, and, where the true probabilities are known, what a perfect network
    would reach on the test samples, as ``click best AUC`` (None where it is not defined).
    """
    clients = task.clients
    parts = {"train": clients.train, "valid": clients.valid, "test": clients.test}
    rates = (positives(clients.train, task.schema.n_tasks) / clients.lengths[:, None]).tolist()
    rows: list[dict[str, Any]] = []
    for place, scenario in enumerate(task.schema.scenarios):
        row: dict[str, Any] = {"scenario": scenario}
        row |= {name: int(part.lengths[place]) for name, part in parts.items()}
        for label, rate in zip(task.schema.tasks, rates[place], strict=True):
            row[f"{label} rate"] = rate
        rows.append(row | _best(task, place))
    return rows


def undefined(task: Task) -> list[str]:
    """Say, a line each, where a part of a scenario holds one class only and so has no AUC."""
    found = []
    for name in ("valid", "test"):
        part: Samples = getattr(task.clients, name)
        lacks = one_class(part, task.schema.n_tasks).tolist()
        for place, scenario in enumerate(task.schema.scenarios):
            labels = zip(task.schema.tasks, lacks[place], strict=True)
            lacking = [label for label, is_one in labels if is_one]
            if lacking:
                what = "has one class only" if int(part.lengths[place]) else "is empty"
                found.append(
                    f"{name} part of scenario '{scenario}' {what}: no AUC of {', '.join(lacking)}"
                )
    return found


def one_class(part: Samples, n_tasks: int) -> Tensor:
    """Whether the labels are all alike, so that there is no AUC: ``(S, T)`` bool."""
    counts = positives(part, n_tasks)
    return (counts == 0) | (counts == part.lengths[:, None])


def positives(part: Samples, n_tasks: int) -> Tensor:
    """Count the labels of 1 in each scenario, ``(S, T)`` int64; streamed samples are read once."""
    if isinstance(part, SampleData):
        part = SampleData(part.ids, {"labels": part.samples["labels"]}, part.offsets)
    elif isinstance(part, StreamedSamples):
        part = replace(part, fields=("labels",))
    batches = part.batches(1, _AT_ONCE, None)
    found = torch.zeros(len(part), n_tasks, dtype=torch.int64)
    for place, count in enumerate(batches.per_epoch.tolist()):
        for number in range(count):
            labels = batches(number, torch.tensor([place]))["labels"]
            found[place] += labels[0].long().sum(0)
    return found


def _best(task: Task, place: int) -> dict[str, Any]:
    if task.truth is None:
        return {}
    part = task.clients.test
    rows = slice(*part.offsets[place : place + 2].tolist())
    truth, labels = task.truth[rows], part.samples["labels"][rows]
    return {
        f"{name} best AUC": _auc(truth[:, number], labels[:, number])
        for number, name in enumerate(task.schema.tasks)
    }


def _auc(score: Tensor, label: Tensor) -> float | None:
    if len(label.unique()) < 2:
        return None
    return float(auc(score, label))
