"""What the benchmark trains on: the first two blocks of a data set, or random ones of a size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.continual.experiment import Experiment
from coterie.continual.settings import Settings
from coterie.core.data.interactions.places import distinct_places
from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.data.sources.catalogue import load_all
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged

_AT_A_TIME = 4096  # clients whose items are drawn at once
_SPREAD = 0.8  # standard deviation of the logarithm of the lengths


@dataclass(frozen=True)
class Workload:
    """Base block and incremental block of a stream, and the numbers of items known in each."""

    name: str
    blocks: list[UserRows]
    n_items: list[int]


def workload(settings: Settings) -> Workload:
    """Take the first two blocks of the data set; random data of ML-100K's size for the sample.

    The generated sample is too small to measure anything. Where a data set is absent and cannot be
    fetched, random data stands in too, and its name says so.
    """
    data = settings.data
    if data.name == "sample":
        return ml_100k_sized("random data of ML-100K's size")
    try:
        load_all(data)
    except UserError as error:
        return ml_100k_sized(f"random data of ML-100K's size ({error})")
    experiment = Experiment(settings)
    sizes = [block.n_items for block in experiment.stream.blocks]
    return Workload(data.name, experiment.blocks[:2], sizes[:2])


def ml_100k_sized(name: str) -> Workload:
    """Random items for as many clients and interactions as ML-100K's first two blocks have."""
    key = Key.from_seed(0).fold("workload")
    base = random_block(key.fold(0), torch.arange(587), 1136, 46_552)
    later = random_block(key.fold(1), torch.arange(480, 697), 1146, 10_298)
    return Workload(name, [base, later], [1136, 1146])


def random_block(key: Key, ids: Tensor, n_items: int, n_interactions: int) -> UserRows:
    """Different uniform items for each client ``(C,)``; lengths are log-normal, add up roughly."""
    spread = torch.exp(_SPREAD * key.fold("lengths").fold(ids).normal(dtype=torch.float64))
    lengths = (spread * (n_interactions / spread.sum())).round().to(torch.int64)
    lengths.clamp_(3, n_items // 2)
    items = torch.cat(list(_items(key, ids, lengths, n_items)))
    nothing = Ragged.from_lengths(items[:0], torch.zeros_like(ids))
    return UserRows(ids, Ragged.from_lengths(items, lengths), nothing, nothing)


def leave_one_out(block: UserRows) -> UserRows:
    """Hold the first item of each client out for validation, the second one for the test."""
    train = block.train
    ones = torch.ones_like(train.lengths)
    valid, test = (
        Ragged.from_lengths(train.values[train.offsets[:-1] + place], ones) for place in (0, 1)
    )
    kept = train.values[train.positions > 1]
    return replace(
        block, train=Ragged.from_lengths(kept, train.lengths - 2), valid=valid, test=test
    )


def _items(key: Key, ids: Tensor, lengths: Tensor, n_items: int) -> Iterator[Tensor]:
    for own, count in zip(ids.split(_AT_A_TIME), lengths.split(_AT_A_TIME), strict=True):
        wanted = Ragged.from_lengths(torch.empty(int(count.sum())), count)
        size = torch.full_like(own, n_items)
        place = distinct_places(key.fold("items").fold(own), wanted, size)
        yield place - wanted.rows * n_items
