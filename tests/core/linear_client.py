"""A toy algorithm for the tests of engines: linear regression with a private intercept.

Stands in for a client half of a user's own, imported by name in the client's process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.local_training.fit import fit
from coterie.core.local_training.losses import masked
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.protocol.card import Card
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Down, Private, Report, Reveals, Step, Up, carries, leaves
from coterie.core.protocol.uploads import Like, Number
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import FactoredRows, Rows


@dataclass(frozen=True)
class Slope(Down):
    weights: dict[str, Tensor] = carries("slope")
    epochs: int = carries("epochs", default=1)
    old: Tensor | None = carries("what is not sent", default=None)


@dataclass(frozen=True)
class SlopeUpdate(Up):
    change: dict[str, Tensor] = leaves(
        "slope", reveals=Reveals.PARAMETERS, expected=Like("weights")
    )
    rows: Rows = leaves("rows", reveals=Reveals.ITEMS_TOUCHED)
    loss: Tensor | None = leaves("loss", reveals=Reveals.MEASUREMENT, expected=Number())


@dataclass(frozen=True)
class Error(Report):
    error: Tensor = leaves("error", reveals=Reveals.MEASUREMENT)


@dataclass(frozen=True)
class Intercept(Private):
    value: Tensor  # (C,)
    state: RowState
    visits: Tensor  # (C,) int64


UPDATE = Step("update", Slope, SlopeUpdate)
MEASURE = Step("measure", Slope, Error)
FORGET = Step("forget", None, None)
EXPLODE = Step("explode", None, None)
CRASH = Step("crash", None, None)


class LinearClient(Client[Intercept, SampleData]):
    def __init__(self, lr: float = 0.1, batch_size: int | None = 2) -> None:
        self.lr, self.batch_size = lr, batch_size

    def enrol(self, data: SampleData, key: Key) -> Intercept:
        value = 0.01 * key.normal()
        visits = torch.zeros(len(data), dtype=torch.int64)
        return Intercept(
            value, RowAdam().begin({"b": value, "w": torch.zeros(len(data), 3)}), visits
        )

    @UPDATE
    def update(
        self, down: Slope, mine: Intercept, data: SampleData, key: Key
    ) -> tuple[SlopeUpdate, Intercept]:
        batches = MiniBatches(data, down.epochs, self.batch_size, key.fold("batches"))
        w = down.weights["linear.w"]
        start = {"b": mine.value, "w": w.expand(len(data), 3)}
        fitted = fit(
            masked(_loss), start, batches, RowAdam(), self.lr, batches.steps, state=mine.state
        )
        change = {"linear.w": fitted.params["w"] - w + 1e-3 * key.fold("noise").normal(3)}
        left = (key.fold("rows").uniform(6) > 0.5).float()
        rows = FactoredRows(torch.arange(len(data)), left, change["linear.w"], len(data))
        up = SlopeUpdate(change, rows, fitted.loss)
        return up, Intercept(fitted.params["b"], fitted.state, mine.visits + 1)

    @MEASURE
    def measure(
        self, down: Slope, mine: Intercept, data: SampleData, key: Key
    ) -> tuple[Error, None]:
        params = {"w": down.weights["linear.w"], "b": mine.value[0]}
        return Error(torch.stack([_loss(params, data.samples)])), None

    @FORGET
    def forget(
        self, down: None, mine: Intercept, data: SampleData, key: Key
    ) -> tuple[None, Intercept]:
        return None, Intercept(mine.value * 0, mine.state, mine.visits + 1)

    @EXPLODE
    def explode(
        self, down: None, mine: Intercept, data: SampleData, key: Key
    ) -> tuple[None, Intercept]:
        return None, Intercept(mine.value / 0, mine.state, mine.visits + 1)

    @CRASH
    def crash(
        self, down: None, mine: Intercept, data: SampleData, key: Key
    ) -> tuple[None, Intercept]:
        raise RuntimeError(f"the data {data.samples['y'].tolist()} are private")


def _loss(params: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
    return (batch["x"] @ params["w"] + params["b"] - batch["y"]).square().mean()


def make_client(card: Card, folder: Path) -> LinearClient:
    own = {name: value for name, value in card.settings.items() if "." not in name}
    return LinearClient(**own)


def make_fedavg(card: Card, folder: Path) -> Client:
    """FedAvg over a network, the way a deployment would make its client half."""
    from torch import nn

    from coterie.core.methods.fedavg import FedAvgClient
    from coterie.core.methods.settings.fedavg import FedAvgSettings

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def loss(self, batch: dict[str, Tensor]) -> Tensor:
            return (self.linear(batch["x"])[:, 0] - batch["y"]).square().mean()

    with Key.from_seed(0).torch_rng():
        return FedAvgClient(Net(), FedAvgSettings(epochs=2, batch_size=2))


def make_number(card: Card, folder: Path) -> int:
    return 3
