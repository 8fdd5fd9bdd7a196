"""Clients of which one answers what it must not, in both forms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.protocol.card import Card
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import (
    Down,
    ListStep,
    Private,
    Reveals,
    Step,
    Up,
    carries,
    leaves,
)
from coterie.core.protocol.uploads import Count, Like, Number
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class Model(Down):
    weights: dict[str, Tensor] = carries("w")  # w: (20, 8)


@dataclass(frozen=True)
class Change(Up):
    change: dict[str, Tensor] = leaves(
        "change of w", reveals=Reveals.PARAMETERS, expected=Like("weights")
    )
    samples: Tensor = leaves("n", reveals=Reveals.STEPS, expected=Count())
    loss: Tensor = leaves("loss", reveals=Reveals.MEASUREMENT, expected=Number())


@dataclass(frozen=True)
class Rounds(Private):
    count: Tensor


@dataclass(frozen=True)
class Own:
    """Data of C clients."""

    ids: Tensor

    def take(self, index: Tensor) -> Own:
        return Own(self.ids[index])

    def __getitem__(self, place: int) -> OwnOne:
        return OwnOne(int(self.ids[place]))


@dataclass(frozen=True)
class OwnOne:
    id: int


LIES: dict[str, tuple[str, Any]] = {
    "nan": ("change", lambda w: w * torch.nan),
    "other shape": ("change", lambda w: w[..., :10, :]),
    "a row to broadcast": ("change", lambda w: 100 + 0 * w[..., :1, :]),
    "other key": ("key", None),
    "huge count": ("samples", lambda n: 0 * n + 10**15),
    "negative count": ("samples", lambda n: 0 * n - 3999),
    "count that is NaN": ("samples", lambda n: n * torch.nan),
    "scaled up": ("change", lambda w: w * 1e30),
    "float64": ("change", lambda w: w.double()),
    "loss of no number": ("loss", lambda x: x / 0),
    "loss of another shape": ("loss", lambda x: torch.stack([x, x], -1)),
    "infinite state": ("state", lambda x: x / 0),
}
"""What a step can answer; where, and what it makes of the truth."""


def told(lie: str | None, up: Change, mine: Any) -> tuple[Change, Any]:
    """The answer, with a lie in it."""
    change, samples, loss, count = up.change["w"], up.samples, up.loss, mine.count + 1.0
    name = "w"
    if lie == "crash":
        raise RuntimeError("the private data are 4711")
    if lie is not None:
        where, made = LIES[lie]
        match where:
            case "change":
                change = made(change)
            case "key":
                name = "v"
            case "samples":
                samples = made(samples)
            case "loss":
                loss = made(loss)
            case "state":
                count = made(count)
    return Change({name: change}, samples, loss), Rounds(count)


class Liars(Client[Rounds, Own]):
    """Client number ``liar`` tells ``lie``; who is in a chunk with it cannot be told apart."""

    def __init__(self, liar: int, lie: str | None) -> None:
        self.liar, self.lie = liar, lie

    def enrol(self, data: Own, key: Key) -> Rounds:
        return Rounds(torch.zeros(len(data.ids)))

    @Step("update", Model, Change)
    def update(self, down: Model, mine: Rounds, data: Own, key: Key) -> tuple[Change, Rounds]:
        change = key.normal(20, 8)
        samples, loss = torch.full_like(data.ids, 5), torch.ones(len(data.ids))
        lie = self.lie if self.liar in data.ids.tolist() else None
        return told(lie, Change({"w": change}, samples, loss), mine)


class ListLiars(Client[Rounds, OwnOne]):
    """The same, one client after the other."""

    form = "list"

    def __init__(self, liar: int, lie: str | None) -> None:
        self.liar, self.lie = liar, lie

    def enrol(self, data: OwnOne, key: Key) -> Rounds:
        return Rounds(torch.zeros(()))

    @ListStep("update", Model, Change)
    def update(self, down: Model, mine: Rounds, data: OwnOne, key: Key) -> tuple[Change, Rounds]:
        up = Change({"w": key.normal(20, 8)}, torch.tensor(5), torch.tensor(1.0))
        return told(self.lie if data.id == self.liar else None, up, mine)


def make_client(card: Card, folder: Path) -> Liars:
    """The client half, for a process of its own."""
    return Liars(**card.settings)
