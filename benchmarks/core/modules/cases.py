"""Modules as a user brings them, and random data for them: what rounds of FedAvg are timed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.tensors.keys import Key

Batch = dict[str, Tensor]
Draw = Callable[[Key, int], Batch]
"""Draws the samples of clients: from their keys, and how many each has, fields ``(C, n, ...)``."""
_FIELDS, _VALUES = 8, 500  # of the samples of the mixture of experts


@dataclass(frozen=True)
class Case:
    """A module, and what a round of it is.

    Attributes:
        name: for people.
        make: draws the module.
        draw: draws samples.
        clients: C.
        samples: of a client.
        batch_size: B.
        epochs: E.
        lr: learning rate.
    """

    name: str
    make: Callable[[], nn.Module]
    draw: Draw
    clients: int
    samples: int
    batch_size: int
    epochs: int = 1
    lr: float = 0.02

    @property
    def steps(self) -> int:
        """Local steps of a round, of all clients."""
        return self.clients * self.epochs * -(-self.samples // self.batch_size)

    def data(self) -> SampleData:
        """Draw the samples of all clients."""
        ids = torch.arange(self.clients)
        fields = self.draw(Key.from_seed(0).fold("samples").fold(ids), self.samples)
        offsets = torch.arange(self.clients + 1) * self.samples
        return SampleData(ids, {n: v.flatten(0, 1) for n, v in fields.items()}, offsets)


class Labelled(nn.Module):
    """Scores of classes and their cross-entropy, as most people write it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def loss(self, batch: Batch) -> Tensor:
        """Mean over the batch."""
        return F.cross_entropy(self.layers(batch["x"]), batch["y"])


class Experts(nn.Module):
    """A small multi-gate mixture of experts for two tasks (Ma et al., KDD 2018)."""

    def __init__(self, dim: int = 8, experts: int = 4, width: int = 64, out: int = 32) -> None:
        super().__init__()
        inputs, tasks = _FIELDS * dim, 2
        self.table = nn.Embedding(_FIELDS * _VALUES, dim)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, out), nn.ReLU())
            for _ in range(experts)
        )
        self.gates = nn.ModuleList(nn.Linear(inputs, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(out, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(tasks)
        )

    def loss(self, batch: Batch) -> Tensor:
        """Mean over samples and tasks."""
        x = self.table(batch["x"]).flatten(-2)
        found = torch.stack([expert(x) for expert in self.experts], -2)
        scores = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            mixed = (gate(x).softmax(-1).unsqueeze(-1) * found).sum(-2)
            scores.append(tower(mixed).squeeze(-1))
        return F.binary_cross_entropy_with_logits(torch.stack(scores, -1), batch["y"])


def perceptron(*widths: int) -> Labelled:
    """Linear layers with ReLU between them.

    Example:
        >>> sum(value.numel() for value in perceptron(784, 200, 10).parameters())
        159010
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return Labelled(*layers[:-1])


def small_cnn(side: int = 32, channels: int = 16) -> Labelled:
    """Two convolutions with group normalisation and pooling, two linear layers."""
    first = [nn.Conv2d(3, channels, 3, padding=1), nn.GroupNorm(4, channels), nn.ReLU()]
    more = nn.Conv2d(channels, 2 * channels, 3, padding=1)
    second = [nn.MaxPool2d(2), more, nn.GroupNorm(4, 2 * channels), nn.ReLU(), nn.MaxPool2d(2)]
    features = 2 * channels * (side // 4) ** 2
    ends = [nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 10)]
    return Labelled(*first, *second, *ends)


def numbers(*shape: int, classes: int = 10) -> Draw:
    """Samples of normal numbers, and labels."""

    def draw(key: Key, count: int) -> Batch:
        x = key.fold("x").normal(count, *shape, dtype=torch.float32)
        return {"x": x, "y": _below(classes, key.fold("y"), count)}

    return draw


def _categories(key: Key, count: int) -> Batch:
    places = _below(_VALUES, key.fold("x"), count, _FIELDS) + _VALUES * torch.arange(_FIELDS)
    return {"x": places, "y": _below(2, key.fold("y"), count, 2).float()}


def _below(high: int, key: Key, *shape: int) -> Tensor:
    return (high * key.uniform(*shape)).long()


CASES = (
    Case("softmax, 930", lambda: perceptron(30, 30), numbers(30, classes=30), 100, 210, 5, lr=0.05),
    Case("MoE of 4 experts, 59 k", Experts, _categories, 100, 200, 32, lr=0.05),
    Case("CNN with GroupNorm, 137 k", small_cnn, numbers(3, 32, 32), 30, 50, 10),
    Case("MLP 784-200-10, 159 k", lambda: perceptron(784, 200, 10), numbers(784), 100, 200, 10),
    Case(
        "MLP 784-1400-600-10, 1.9 M",
        lambda: perceptron(784, 1400, 600, 10),
        numbers(784),
        20,
        200,
        10,
    ),
)
"""Names tell the number of parameters."""
