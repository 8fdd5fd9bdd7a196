"""Forward passes in float64, one sample and one unit at a time, by the names of a state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import Batch
from coterie.msmt.settings import ModelSettings

Row = list[float]
M = TypeVar("M", bound=nn.Module)

SCHEMA = Schema(("click", "buy"), ("NL", "ES", "FR"), (5, 4), 2, funnel=True)
SIZES = ModelSettings(embedding=3, experts=4, expert_layers=(5, 4), tower_layers=(3, 2), dropout=0)


def drawn(schema: Schema, n: int, seed: int = 0) -> Batch:
    """Samples of all scenarios, each sample's labels those of a funnel."""
    key = Key.from_seed(seed).fold("batch")
    uniform = key.fold("ids").uniform(n, len(schema.vocabularies), dtype=torch.float64)
    labels = key.fold("labels").uniform(n, schema.n_tasks) < 0.6
    return {
        "ids": (uniform * torch.tensor(schema.vocabularies)).to(torch.int32),
        "numbers": key.fold("numbers").normal(n, schema.n_numbers, dtype=torch.float64),
        "scenario": torch.arange(n) % schema.n_scenarios,
        "labels": labels.cumprod(1).to(torch.uint8),
    }


def shaken(network: M, seed: int = 0) -> M:
    """Make a network float64, and draw all of its parameters and statistics."""
    network.double()
    key = Key.from_seed(seed).fold("values")
    for name, value in [*network.named_parameters(), *network.named_buffers()]:
        if value.is_floating_point():
            draw = key.fold(name).normal(*value.shape, dtype=value.dtype)
            value.data.copy_(draw.abs() + 0.5 if name.endswith("running_var") else draw)
    return network


def moved(parameter: nn.Parameter) -> bool:
    """Whether a gradient reached it."""
    return parameter.grad is not None and bool(parameter.grad.abs().max() > 0)


class Naive:
    """What a network's parts should give, by the names of their parameters.

    Args:
        network: whose state it is.
        training: whether batch normalisation takes the batch's own statistics.
    """

    def __init__(self, network: nn.Module, training: bool = False) -> None:
        self.state = {
            name: value.detach().double().numpy() for name, value in network.state_dict().items()
        }
        self.training = training

    def embed(self, batch: Batch, name: str = "inputs") -> list[Row]:
        """Fields of each sample, end to end."""
        rows = []
        for ids, numbers in zip(batch["ids"].tolist(), batch["numbers"].tolist(), strict=True):
            row: Row = []
            for field, one in enumerate(ids):
                row += self.state[f"{name}.tables.{field}.weight"][one].tolist()
            rows.append(row + self.linear(f"{name}.numbers", numbers))
        return rows

    def linear(self, name: str, row: Sequence[float]) -> Row:
        weight = self.state[f"{name}.weight"]
        found = [sum(w * x for w, x in zip(unit, row, strict=True)) for unit in weight]
        if f"{name}.bias" in self.state:
            found = [a + b for a, b in zip(found, self.state[f"{name}.bias"], strict=True)]
        return found

    def norm(self, name: str, rows: list[Row]) -> list[Row]:
        """Batch normalisation."""
        columns = []
        for unit, column in enumerate(zip(*rows, strict=True)):
            mean = self.state[f"{name}.running_mean"][unit]
            var = self.state[f"{name}.running_var"][unit]
            if self.training:
                mean, var = moments(column)
            scale, shift = self.state[f"{name}.weight"][unit], self.state[f"{name}.bias"][unit]
            columns.append([scale * (x - mean) / math.sqrt(var + 1e-5) + shift for x in column])
        return [list(row) for row in zip(*columns, strict=True)]

    def mlp(self, name: str, rows: list[Row], linear_end: bool = False) -> list[Row]:
        """Linear layers with what is behind them, normalisation if any and ReLU.

        The names of a sequence's parts are numbers. With ``linear_end`` nothing is behind the last.
        """
        numbers = {
            int(key.removeprefix(f"{name}.").split(".")[0])
            for key in self.state
            if key.startswith(f"{name}.") and key.removeprefix(f"{name}.").split(".")[0].isdigit()
        }
        linear = [n for n in sorted(numbers) if self.state[f"{name}.{n}.weight"].ndim == 2]
        for n in linear:
            rows = [self.linear(f"{name}.{n}", row) for row in rows]
            if n + 1 in numbers and n + 1 not in linear:
                rows = self.norm(f"{name}.{n + 1}", rows)
            if n != linear[-1] or not linear_end:
                rows = [[max(x, 0.0) for x in row] for row in rows]
        return rows

    def towers(self, streams: Sequence[list[Row]]) -> np.ndarray:
        """Logits ``(B, T)``."""
        found = [self.mlp(f"towers.{task}", stream, True) for task, stream in enumerate(streams)]
        return np.array(found)[:, :, 0].T


def moments(column: Sequence[float]) -> tuple[float, float]:
    """Mean and variance (not the unbiased one)."""
    mean = sum(column) / len(column)
    return mean, sum((x - mean) ** 2 for x in column) / len(column)


def softmax(row: Sequence[float]) -> Row:
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def weighted(weights: Sequence[float], rows: Sequence[Row]) -> Row:
    """Sum of rows with weights."""
    return [
        sum(w * row[unit] for w, row in zip(weights, rows, strict=True))
        for unit in range(len(rows[0]))
    ]


def entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean over samples of the sum over tasks of the binary cross-entropy."""
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        for x, y in zip(row, label, strict=True):
            total += math.log1p(math.exp(-x if y else x))
    return total / len(logits)
