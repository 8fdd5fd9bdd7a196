"""Rows that the server wants to know of: training rows of a scenario, and others of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.samples.samples import MASK, Samples
from coterie.core.tensors.keys import Key
from coterie.msmt.attack.occurrence import occurring
from coterie.msmt.data.task import Task
from coterie.msmt.models.base import Batch

_AT_ONCE = 1 << 16
_FEWEST = 2  # rows of each kind: batch normalisation needs several


@dataclass(frozen=True)
class Candidates:
    """What is asked about a scenario, with the truth, which only the judge knows.

    Attributes:
        rows: members first, then as many others.
        is_member: ``(n,)`` bool.
        occurs: which categories of each field are in its training samples, F times ``(C,)`` bool.
    """

    rows: Batch
    is_member: Tensor
    occurs: Sequence[Tensor]


def candidates(task: Task, most: int, key: Key) -> dict[int, Candidates]:
    """Draw the candidates of every scenario, by its number.

    Members are training rows and others test rows, ``most`` of each, or as many as there are of the
    scarcer. A scenario that has fewer than two of either is left out.

    Args:
        task: what the scenarios hold.
        most: rows of each kind.
        key: of the draws; those of one scenario do not depend on the others.
    """
    data, found = task.clients, {}
    counts = torch.minimum(data.train.lengths, data.test.lengths).clamp(max=most).tolist()
    for place, count in enumerate(counts):
        if count < _FEWEST:
            continue
        one = torch.tensor([place])
        members, others = (
            _drawn(each.take(one), count, key.fold(name))
            for name, each in (("members", data.train), ("others", data.test))
        )
        rows = {name: torch.cat([members[name], others[name]]) for name in members}
        is_member = torch.arange(2 * count) < count
        occurs = _occurring(data.train.take(one), task.schema.vocabularies)
        found[place] = Candidates(rows, is_member, occurs)
    return found


def _drawn(samples: Samples, count: int, key: Key) -> Batch:
    """Draw some samples of a single scenario, without replacement."""
    batch = samples.batches(1, count, key.fold(samples.ids))(0, torch.tensor([0]))
    return {name: value[0, :count] for name, value in batch.items() if name != MASK}


def _occurring(samples: Samples, vocabularies: Sequence[int]) -> list[Tensor]:
    """Which categories of each field are in the samples of a single scenario."""
    batches = samples.batches(1, _AT_ONCE, None)
    found = [torch.zeros(size, dtype=torch.bool) for size in vocabularies]
    for number in range(int(batches.per_epoch)):
        ids = batches(number, torch.tensor([0]))["ids"][0]
        for field, size in enumerate(vocabularies):
            found[field] |= occurring(ids[:, field], size)
    return found
