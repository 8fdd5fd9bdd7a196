"""Parts that the networks are made of: multi-layer perceptrons, towers, mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from coterie.msmt.data.schema import Schema
from coterie.msmt.settings.model import ModelSettings


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
