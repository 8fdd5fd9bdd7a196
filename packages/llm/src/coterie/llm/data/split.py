"""Train, validation and test by one point in time for all users (PPLR, section 4.1.1)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID, Interactions
from coterie.core.data.interactions.splits import first_of_pair
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged

Period = Literal["train", "newer"]
"""Before validation; or since then, before the test."""
_PARTS = {TRAIN: "training", VALID: "validation", TEST: "test"}


@dataclass(frozen=True)
class GlobalSplit:
    """Items of all users before, between and after the two cuts.

    No item is twice in a row, nor in two parts of the same user.

    Attributes:
        train: one row a user number, item numbers in order of time; may be empty.
        valid: the same between the cuts.
        test: the same after the second cut.
    """

    train: Ragged
    valid: Ragged
    test: Ragged

    @property
    def n_users(self) -> int:
        """Number of user numbers, those without an item in some part included."""
        return len(self.train)

    def before_test(self) -> Ragged:
        """Items of train and validation, one row a user, in order of time."""
        return self.train.beside(self.valid)


def global_split(interactions: Interactions, key: Key) -> GlobalSplit:
    """Cut all interactions at the 80 % and the 90 % quantile of time.

    An item that a user touches several times counts once, at its first time, before the cuts are
    made. Interactions of the same time are in a random order which depends on ``key`` and on the
    original ids, not on the order of the file. Where the source comes in parts of its own
    (``Interactions.split``), these are kept.

    Raises:
        UserError: without timestamps, or if a part would be empty.
    """
    order = _in_time(interactions, key)
    user, item = interactions.user[order], interactions.item[order]
    first = first_of_pair(user, item, interactions.n_items)
    order, user, item, n = order[first], user[first], item[first], first.numel()
    if interactions.split is None:
        place = torch.arange(n)
        part = (place >= n * 8 // 10).long() + (place >= n * 9 // 10)
    else:
        part = interactions.split[order]
    for number, name in _PARTS.items():
        if not bool((part == number).any()):
            raise UserError(
                f"{interactions.source} has only {n} interactions, none of them for the {name} "
                "part: use more data, or a smaller --data.min_interactions"
            )
    chosen = (part == number for number in _PARTS)
    rows = (Ragged.from_pairs(user[c], item[c], interactions.n_users) for c in chosen)
    return GlobalSplit(*rows)


def _in_time(interactions: Interactions, key: Key) -> Tensor:
    """Rows in order of time, ``(n,)`` int64; those of the same time at random."""
    time = interactions.time
    if interactions.split is None:
        time = interactions.require_time("the split by global time")
    users, items = _hashes(interactions.user_names), _hashes(interactions.item_names)
    draw = key.fold("ties").fold(users).take(interactions.user).bits(items[interactions.item])
    order = torch.argsort(draw, stable=True)
    return order[torch.argsort(time[order], stable=True)]


def _hashes(names: list[str]) -> Tensor:
    return torch.tensor([zlib.crc32(name.encode()) for name in names], dtype=torch.int64)
