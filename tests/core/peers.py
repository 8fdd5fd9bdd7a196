"""Organisations that exchange lists of tensors, for the tests of the boundary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from tests.in_process import OpenCohort, cohort_in_process
from torch import Tensor

from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.client import Client
from coterie.core.protocol.journal import Journal
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
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


@dataclass(frozen=True)
class Cell:
    """A part of a message."""

    values: Tensor
    name: str | None = None


@dataclass(frozen=True)
class Call(Down):
    """Says what is to be done."""

    what: Literal["fine", "nan", "write", "append", "share"] = carries("what to do", default="fine")
    cells: dict[str, Cell] = carries("a message for each peer", default=None)
    pair: tuple[Tensor, int] | None = carries("two things", default=None)


@dataclass(frozen=True)
class Parts(Up):
    """One tensor for each peer."""

    parts: list[Tensor] = leaves("a tensor for each peer", reveals=Reveals.PARAMETERS)
    rows: Ragged | None = leaves("rows of unequal length", reveals=Reveals.PARAMETERS)


@dataclass(frozen=True)
class Models(Private):
    """What an organisation keeps."""

    models: list[Tensor]


@dataclass(frozen=True)
class Nobody:
    """Local data of C clients without data."""

    ids: Tensor

    def take(self, index: Tensor) -> Nobody:
        """A part of the clients."""
        return Nobody(self.ids[index])

    def __getitem__(self, place: int) -> int:
        return int(self.ids[place])


STACKED = Step("send", Call, Parts)
SEND = ListStep("send", Call, Parts)
KEEP = ListStep("keep", Call, None)


class StackedPeers(Client[Models, Nobody]):
    """In the stacked form."""

    def enrol(self, data: Nobody, key: Key) -> Models:
        return Models([torch.zeros(len(data.ids), 2)])

    @STACKED
    def send(self, down: Call, mine: Models, data: Nobody, key: Key) -> tuple[Parts, None]:
        """Send a list and rows, of which those of the last client may be no numbers."""
        n = len(data.ids)
        values = torch.arange(n, dtype=torch.float32)
        lengths = torch.tensor([3] * (n - 1) + [1])
        floats = torch.zeros(int(lengths.sum()))
        if down.what == "nan":
            floats[-1] = torch.nan
        if down.what == "share":
            return Parts([mine.models[0]], None), None
        return Parts([values, values.clone()], Ragged.from_lengths(floats, lengths)), None


class ListPeers(Client[Models, int]):
    """In the list form."""

    form = "list"

    def enrol(self, data: int, key: Key) -> Models:
        return Models([torch.zeros(2)])

    @SEND
    def send(self, down: Call, mine: Models, data: int, key: Key) -> tuple[Parts, None]:
        """Send a list, in which client 9 may have a NaN."""
        bad = down.what == "nan" and data == 9
        return Parts([torch.zeros(3), torch.full((2,), torch.nan if bad else 1.0)], None), None

    @KEEP
    def keep(self, down: Call, mine: Models, data: int, key: Key) -> tuple[None, Models | None]:
        """Write into a model, append to the list that was given, or learn one more model."""
        if down.what == "write":
            mine.models[0].add_(1.0)
        if down.what == "append":
            mine.models.append(torch.ones(2))
            return None, None
        return None, replace(mine, models=[*mine.models, torch.ones(2)])


def cohort_of(client: Client, ids: tuple[int, ...] = (2, 5, 9)) -> OpenCohort:
    """Everybody enrolled."""
    data = Nobody(torch.tensor(ids))
    store: PrivateStore = PrivateStore(stacked=client.form == "stacked")
    cohort = cohort_in_process(client, data, store, Key.from_seed(0), (0, 1), Ledger(), Journal())
    cohort.enrol()
    return cohort
