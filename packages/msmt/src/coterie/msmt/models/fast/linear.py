"""Linear maps of many networks side by side, and their gradients, in memory that is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.msmt.models.fast.chunks import pieces


@dataclass(frozen=True)
class Run:
    """Networks one after the other whose weights are so, too; they are mapped in one product.

    Attributes:
        networks: which.
        weights: theirs.
    """

    networks: slice
    weights: slice

    def seen(self, x: Tensor) -> Tensor:
        """What they see of ``(G, n_in, B)``, or of ``(n_in, B)``, which all see."""
        if x.dim() == 3:
            return x[self.networks]
        return x.expand(self.networks.stop - self.networks.start, -1, -1)


def runs(n_networks: int, n_weights: int, output: Tensor) -> Iterator[Run]:
    """Cut networks into runs whose outputs stay in the cache, each like ``output``.

    Network g has weight ``g % n_weights``.

    Example:
        >>> [run.weights for run in runs(4, 2, torch.zeros(3))]
        [slice(0, 2, None), slice(0, 2, None)]
    """
    for start in range(0, n_networks, n_weights):
        for weights in pieces(0, n_weights, output):
            yield Run(slice(start + weights.start, start + weights.stop), weights)


def mapped(x: Tensor, weight: Tensor, run: Run, out: Tensor) -> None:
    """Write the maps of a run into ``out`` ``(G, n_out, B)``.

    Args:
        x: ``(G, n_in, B)``, or ``(n_in, B)``.
        weight: ``(M, n_out, n_in)``.
        run: of the networks.
        out: of all networks.
    """
    torch.bmm(weight[run.weights], run.seen(x), out=out[run.networks])


def weight_gradient(dz: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Gradient in the weights, laid out as they are, of that in the maps, ``(G, n_out, B)``."""
    turned = weight.stride(-1) != 1
    found = torch.empty_like(weight.mT if turned else weight, memory_format=torch.contiguous_format)
    for run in runs(len(dz), len(weight), dz[0]):
        given, seen = dz[run.networks], run.seen(x)
        left, right = (seen, given.mT) if turned else (given, seen.mT)
        if run.networks.start < len(weight):
            torch.bmm(left, right, out=found[run.weights])
        else:
            found[run.weights].baddbmm_(left, right)
    return found.mT if turned else found


def input_gradient(dz: Tensor, weight: Tensor) -> Tensor:
    """Gradient in the inputs ``(G, n_in, B)`` of that in the maps, ``(G, n_out, B)``."""
    found = dz.new_empty(len(dz), weight.shape[-1], dz.shape[-1])
    for run in runs(len(dz), len(weight), dz[0]):
        torch.bmm(weight[run.weights].mT, dz[run.networks], out=found[run.networks])
    return found


def common_input_gradient(dz: Tensor, weight: Tensor, fixed: int) -> Tensor:
    """Gradient in an input ``(n_in, B)`` that all see, 0 in its first rows."""
    found = dz.new_zeros(weight.shape[-1], dz.shape[-1])
    for g, each in enumerate(dz):
        found[fixed:].addmm_(weight[g % len(weight), :, fixed:].mT, each)
    return found
