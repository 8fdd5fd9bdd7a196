"""What all multi-task networks have in common: inputs, layers, the loss, what is measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.metrics.monitor import Monitor
from coterie.msmt.data.describe import auc
from coterie.msmt.data.task import Schema
from coterie.msmt.settings import ModelSettings

Batch = dict[str, Tensor]


class MultiTask(nn.Module):
    """Base of the networks: a subclass gives the logits of all tasks.

    Subclasses are made of the form of the samples, ``schema``, and their sizes, ``settings``.
    """

    monitor = Monitor("eval/auc")

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.schema = schema

    def logits(self, batch: Batch) -> Tensor:
        """Logits of the tasks' probabilities, ``(B, T)``."""
        raise NotImplementedError(f"{type(self).__name__} must give logits")

    def loss(self, batch: Batch) -> Tensor:
        """Mean over samples of the sum over tasks of the binary cross-entropy (Eq. 22)."""
        logits = self.logits(batch)
        return cross_entropy(logits, batch["labels"].to(logits.dtype))

    def probabilities(self, batch: Batch) -> Tensor:
        """Probabilities of the labels, ``(B, T)``."""
        return self.logits(batch).sigmoid()

    @property
    def measure_names(self) -> tuple[str, ...]:
        """What is measured: loss, mean AUC, AUC of each task."""
        return ("loss", "auc", *(f"auc_{task}" for task in self.schema.tasks))

    def predictions(self, batch: Batch) -> Batch:
        """What is kept of each sample to measure by: ``logit`` and ``label``, each ``(B, T)``."""
        return {"logit": self.logits(batch), "label": batch["labels"]}

    def measures(self, predictions: Batch) -> dict[str, Tensor]:
        """Cross-entropy, and AUC of each task with their mean; NaN where there is one class only.

        AUCs are of the logits: probabilities near 0 and 1 would tie by rounding.
        """
        logit, label = predictions["logit"], predictions["label"]
        found = {
            f"auc_{task}": auc(logit[:, number], label[:, number])
            for number, task in enumerate(self.schema.tasks)
        }
        mean = torch.stack(list(found.values())).nanmean()
        return {"loss": cross_entropy(logit, label.to(logit.dtype)), "auc": mean, **found}


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over samples of the sum over tasks; both ``(B, T)``."""
    found = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return found / len(logits)


# What the networks see of a sample: an embedding of each field, end to end.

SPARSE_FROM = 50_000
"""Ids from which on the table of a field is large. With a batch of 2048 and embeddings of 8 to 128,
a step of Adam is as fast by either rule at about so many; with 1,000,000 it is 7 to 40 times as
fast by the rule of large tables."""


class Inputs(nn.Module):
    """Embeddings of a sample's fields.

    x = [E_1[c_1]; …; E_F[c_F]; W numbers + b], the layout of MTReclib: an embedding of each
    categorical field, and one of all numerical fields together. There may be no categorical, or
    no numerical fields.

    The gradient of a large table, of `SPARSE_FROM` ids or more, names the rows that a batch looks
    up, and a step moves these alone: with Adam or weight decay another rule than that of smaller
    tables (`coterie.core.local_training.row_optimizer.RowOptimizer`).

    Args:
        schema: form of the samples.
        width: d, numbers in an embedding.

    Attributes:
        n_features: D, length of x.
        tables: F embeddings ``(vocabularies[f], d)``.
        numbers: linear layer ``(P -> d)``; None where P = 0.

    Raises:
        UserError: the samples have no fields at all.

    Example:
        >>> inputs = Inputs(Schema(("ctr",), ("NL",), (10, 4), 3), 8)
        >>> batch = {"ids": torch.zeros(5, 2, dtype=torch.uint16), "numbers": torch.ones(5, 3)}
        >>> inputs(batch).shape
        torch.Size([5, 24])
    """

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__()
        if not schema.n_inputs:
            raise UserError("the samples have no fields: give categorical or numerical ones")
        self.n_features = schema.n_inputs * width
        sizes = schema.vocabularies
        tables = [nn.Embedding(size, width, sparse=size >= SPARSE_FROM) for size in sizes]
        for table in tables:
            nn.init.xavier_uniform_(table.weight)
        self.tables = nn.ModuleList(tables)
        self.numbers = nn.Linear(schema.n_numbers, width) if schema.n_numbers else None

    def forward(self, batch: Batch) -> Tensor:
        """Embed the fields of samples, ``(B, D)``; ids may be of any integer dtype."""
        ids = batch["ids"].long()
        found = [table(column) for table, column in zip(self.tables, ids.unbind(1), strict=True)]
        if self.numbers is not None:
            found.append(self.numbers(batch["numbers"].to(self.numbers.weight.dtype)))
        return torch.cat(found, dim=1)


class ScenarioEmbedding(nn.Embedding):
    """An embedding ``(S, d)`` of the samples' scenarios, ``width`` is d."""

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__(schema.n_scenarios, width)
        nn.init.xavier_uniform_(self.weight)


# Parts that the networks are made of: multi-layer perceptrons, towers, mixtures of experts.


def mlp(n_in: int, widths: Iterable[int], dropout: float = 0.0, norm: bool = True) -> nn.Sequential:
    """Make a multi-layer perceptron: linear, batch normalisation, ReLU, dropout in each layer.

    Args:
        n_in: length of the input.
        widths: units of the layers; none makes the identity.
        dropout: share of the units that is dropped in training.
        norm: whether there is batch normalisation.

    Example:
        >>> [type(layer).__name__ for layer in mlp(3, [4])]
        ['Linear', 'BatchNorm1d', 'ReLU', 'Dropout']
    """
    layers: list[nn.Module] = []
    for width in widths:
        layers.append(nn.Linear(n_in, width))
        if norm:
            layers.append(nn.BatchNorm1d(width))
        layers += [nn.ReLU(), nn.Dropout(dropout)]
        n_in = width
    return nn.Sequential(*layers)


def expert(n_in: int, settings: ModelSettings) -> nn.Sequential:
    """Make an expert, ``(B, n_in)`` to ``(B, settings.expert_layers[-1])``."""
    return mlp(n_in, settings.expert_layers, settings.dropout, settings.mlp_norm)


class Experts(nn.ModuleList):
    """Experts that see the same."""

    def forward(self, x: Tensor) -> list[Tensor]:
        """Give what each makes of ``(B, n_in)``: n times ``(B, h)``."""
        return [one(x) for one in self]


def tower(n_in: int, settings: ModelSettings) -> nn.Sequential:
    """Make a task's tower, ``(B, n_in)`` to logits ``(B, 1)``: hidden layers and a linear unit."""
    hidden = mlp(n_in, settings.tower_layers, settings.dropout, settings.mlp_norm)
    return nn.Sequential(*hidden, nn.Linear(settings.tower_layers[-1], 1))


def towers_of(schema: Schema, settings: ModelSettings) -> nn.ModuleList:
    """Make a tower for each of the T tasks, which takes what an expert gives."""
    return nn.ModuleList(tower(settings.expert_layers[-1], settings) for _ in schema.tasks)


def each_through(towers: Iterable[nn.Module], streams: Iterable[Tensor]) -> Tensor:
    """Send each task's stream ``(B, h)`` through its tower; logits ``(B, T)``."""
    found = [tower(stream) for tower, stream in zip(towers, streams, strict=True)]
    return torch.cat(found, dim=1)


def mix(weights: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """Sum what n experts give, with weights.

    Args:
        weights: ``(B, n)``, of a gate.
        outputs: n times ``(B, h)``, of the experts.

    Returns:
        ``(B, h)``.

    Example:
        >>> mix(torch.tensor([[0.25, 0.75]]), [torch.tensor([[4.0]]), torch.tensor([[8.0]])])
        tensor([[7.]])
    """
    return torch.einsum("bn,nbh->bh", weights, torch.stack(list(outputs)))
