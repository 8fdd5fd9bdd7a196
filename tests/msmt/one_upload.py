"""What one upload tells by itself, and an upload as it leaves a scenario behind clip and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.uploads import changed
from coterie.core.privacy.noise import Clip, GaussianNoise
from coterie.core.protocol.messages import Up
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.msmt.attack.uploads import (
    LocalSteps,
    Membership,
    Normalise,
    Occurrence,
    RowLosses,
    judged,
    judged_occurrence,
    rounding,
    untouched,
)
from coterie.msmt.models.base import Batch, MultiTask


def membership(
    network: MultiTask,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    members: Batch,
    others: Batch,
    key: Key,
    normalise: Normalise = "candidates",
) -> Membership:
    """Tell rows that a scenario trained on from other rows of it."""
    rows = {name: torch.cat([members[name], others[name]]) for name in members}
    of = RowLosses(network, normalise)
    first, then = (of(one, rows, key) for one in (before, after))
    is_member = torch.arange(len(first)) < len(next(iter(members.values())))
    return judged(first, then, is_member)


def losses(
    network: MultiTask,
    values: Mapping[str, Tensor],
    rows: Batch,
    key: Key,
    normalise: Normalise = "candidates",
) -> Tensor:
    """Cross-entropy of each row with one network."""
    return RowLosses(network, normalise)(values, rows, key)


def occurrence(
    before: Tensor,
    increments: Tensor,
    occurs: Tensor,
    local: LocalSteps,
    memory: dict[str, Tensor] | None = None,
) -> Occurrence:
    """Tell which rows of a table a scenario used."""
    scores = distances(before, increments, local, memory)
    return judged_occurrence(scores, scores > rounding(before, local), occurs)


def distances(
    before: Tensor,
    increments: Tensor,
    local: LocalSteps,
    memory: dict[str, Tensor] | None = None,
) -> Tensor:
    """Root mean square by which rows are not where unused ones would be, ``(C,)``."""
    alone = untouched(before, local, memory)[0]
    return (before + increments - alone).double().square().mean(1).sqrt()


@dataclass(frozen=True)
class _Sent(Up):
    change: Params = changed("what is attacked")


def behind_noise(
    increments: Mapping[str, Tensor], clip: float, scales: Sequence[float], key: Key
) -> dict[str, Params]:
    """An upload as it is, ``plain``, ``clipped``, and as ``noise s`` for each multiplier s."""
    one = Key(key.state.reshape(1))
    clipped = Clip(clip)(_Sent(tree.as_stack(dict(increments))), one)
    found = {"plain": dict(increments), "clipped": tree.as_one(clipped.change)}
    for scale in scales:
        noisy = GaussianNoise(scale * clip)(clipped, one)
        found[f"noise {scale:g}"] = tree.as_one(noisy.change)
    return found
