"""Hidden layers of many networks side by side: linear, batch normalisation, ReLU, dropout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BYTES = 1 << 20


def pieces(start: int, stop: int, one: Tensor) -> Iterator[slice]:
    """Cut a range of things like ``one`` into pieces of about a MB; on a GPU there is one piece.

    Example:
        >>> import torch
        >>> list(pieces(2, 9, torch.zeros(1 << 16)))
        [slice(2, 6, None), slice(6, 9, None)]
    """
    step = max(1, stop - start)
    if one.is_cpu:
        step = min(step, max(1, BYTES // max(1, one.numel() * one.element_size())))
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def chunks(tensor: Tensor) -> Iterator[slice]:
    """Cut the first axis of a tensor that is not empty."""
    return pieces(0, len(tensor), tensor[0])


# Linear maps of many networks side by side, and their gradients, in memory that is given.


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


# Dropout from 16 random bits a unit.

_LANES = 1 << 16
_PER_WORD = 4  # lanes of 16 bits in an int64


@dataclass(frozen=True)
class Dropout:
    """Which share of the units is dropped, to a 65536th, and how the others are scaled.

    A unit has 16 random bits, a whole number from -32768, and is kept if that is above a bound.
    What is kept is scaled by exactly one over the share of numbers above the bound, so that the
    mean stays what it was.

    Args:
        rate: share that is dropped, in [0, 1); rounded to a 65536th, 65535 of them at most.

    Example:
        >>> Dropout(0.25).scale, Dropout(0.0).scale
        (1.3333333333333333, 1.0)
    """

    rate: float

    @property
    def dropped(self) -> int:
        """How many of the 65536 values of 16 bits drop a unit."""
        return min(round(self.rate * _LANES), _LANES - 1)

    @property
    def scale(self) -> float:
        """What kept units are multiplied by."""
        return _LANES / (_LANES - self.dropped)

    @property
    def bound(self) -> float:
        """The bits of units that are kept are above it, as signed numbers."""
        return self.dropped - _LANES / 2 - 0.5

    @staticmethod
    def bits(like: Tensor) -> Tensor:
        """Draw bits from torch's global generator, int16 in the shape of ``like``."""
        words = like.new_empty(-(-like.numel() // _PER_WORD), dtype=torch.int64)
        # `random_` without bounds leaves the sign out, which is a bit of every fourth lane.
        lanes = words.random_(-(1 << 63), None).view(torch.int16)
        return lanes[: like.numel()].view(like.shape)


# What torch calls the gradient of a threshold: a select, and it is vectorised.
_where_above = torch.ops.aten.threshold_backward.grad_input
_normalised = torch.ops.aten.native_group_norm
_normalised_backward = torch.ops.aten.native_group_norm_backward


def hidden(
    x: Tensor,
    weight: Tensor,
    gain: Tensor | None,
    shift: Tensor,
    dropout: Dropout,
    eps: float = 1e-5,
    fixed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a hidden layer of G networks on a batch: dropout(ReLU(BN(weight x))), in training.

    Everything is feature-major: a unit's values for the batch lie together, so batch
    normalisation is torch's group normalisation with a group a unit. Network g takes weight
    ``g % M``: with G = T M, M experts are run T times. A linear layer's bias would change nothing,
    since normalisation takes it out again.

    Args:
        x: ``(G, n_in, B)``, or ``(n_in, B)`` where all networks see the same.
        weight: ``(M, n_out, n_in)``, any strides.
        gain: γ ``(G, n_out)`` of the normalisation; None = no normalisation.
        shift: β of the normalisation, or the bias of the linear layer; ``(G, n_out)``.
        dropout: of the outputs.
        eps: of the normalisation.
        fixed: how many of the first rows of ``x`` need no gradient, where all networks see the
            same; it is 0 there.

    Returns:
        Outputs ``(G, n_out, B)``; means and 1/sqrt(variance + eps) of ``weight x``,
        ``(G, n_out)``, without gradients, and without meaning if there is no normalisation.
        They can be differentiated once.

    Raises:
        ValueError: there is normalisation, and one sample, which has no variance.
    """
    if gain is not None and x.shape[-1] < 2:
        raise ValueError(
            f"batch normalisation needs batches of 2 samples or more in training, not {x.shape[-1]}"
        )
    found: tuple[Tensor, Tensor, Tensor] = _Hidden.apply(
        x, weight, gain, shift, dropout, eps, fixed
    )
    return found


class _Hidden(torch.autograd.Function):
    """See `hidden`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        gain: Tensor | None,
        shift: Tensor,
        dropout: Dropout,
        eps: float,
        fixed: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_networks, n_out = shift.shape
        z = x.new_empty(n_networks, n_out, x.shape[-1])
        out, (mean, rstd) = torch.empty_like(z), shift.new_zeros(2, n_networks, n_out)
        scaled = None if gain is None else (gain * dropout.scale).view(-1)
        moved = (shift * dropout.scale).view(-1)
        flat = [each.flatten(0, 1) for each in (z, out, mean, rstd)]
        for run in runs(n_networks, len(weight), z[0]):
            mapped(x, weight, run, z)
            first, last = run.networks.start * n_out, run.networks.stop * n_out
            bits = dropout.bits(flat[0][first:last]) if dropout.dropped else None
            for at in pieces(first, last, flat[0][0]):
                of, out_of, mean_of, rstd_of = (each[at] for each in flat)
                if scaled is None:
                    y = torch.add(moved[at, None], of, alpha=dropout.scale)
                else:
                    y = _normal(of, scaled[at], moved[at], eps, mean_of, rstd_of)
                if bits is None:
                    torch.clamp_min(y, 0, out=out_of)
                    continue
                kept = bits[at.start - first : at.stop - first].to(y.dtype)
                _where_above(y, kept, dropout.bound, grad_input=out_of).relu_()
        ctx.save_for_backward(x, weight, gain, None if gain is None else z, out, mean, rstd)
        ctx.scale, ctx.fixed = dropout.scale, fixed
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)
        return out, mean, rstd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 7
        x, weight, gain, z, out, mean, rstd = ctx.saved_tensors
        # Of z nothing is needed once its gradient is there, so that takes its place.
        dz = torch.empty_like(out) if z is None else z
        dgain, dshift = _activation_backward(grad, out, dz, mean, rstd, gain, ctx.scale)
        need_x, need_weight = ctx.needs_input_grad[:2]
        dx = dweight = None
        if need_weight:
            dweight = weight_gradient(dz, x, weight)
        if need_x and x.dim() == 2:
            dx = common_input_gradient(dz, weight, ctx.fixed)
        elif need_x:
            dx = input_gradient(dz, weight)
        return dx, dweight, dgain, dshift, None, None, None


def _normal(
    z: Tensor, gain: Tensor, shift: Tensor, eps: float, mean: Tensor, rstd: Tensor
) -> Tensor:
    """Normalise rows ``(n, B)``, then scale and shift each; writes means and rstds."""
    n, batch = z.shape
    y, means, rstds = _normalised(z[None], gain, shift, 1, n, batch, n, eps)
    mean.copy_(means[0])
    rstd.copy_(rstds[0])
    found: Tensor = y[0]
    return found


def _activation_backward(
    grad: Tensor,
    out: Tensor,
    dz: Tensor,
    mean: Tensor,
    rstd: Tensor,
    gain: Tensor | None,
    scale: float,
) -> tuple[Tensor | None, Tensor]:
    """Write the gradient in z over z; gives those in gain and shift.

    A unit that was dropped, or was not positive, is 0 in ``out``: no mask has to be kept.

    Args:
        grad: in the outputs, ``(G, n, B)``.
        out: the outputs.
        dz: z, to be written over; without normalisation any memory of its form.
        mean: of z, ``(G, n)``.
        rstd: of z.
        gain: of the normalisation, or None.
        scale: of what dropout kept.
    """
    given, out, z, mean, rstd = (each.flatten(0, 1) for each in (grad, out, dz, mean, rstd))
    dgain, dshift = grad.new_empty(2, len(z))
    scaled = None if gain is None else (gain * scale).view(-1)
    (n_rows, batch), space = z.shape, torch.empty_like(z[: next(chunks(z)).stop])
    for at in pieces(0, n_rows, z[0]):
        n = at.stop - at.start
        dy = _where_above(given[at], out[at], 0, grad_input=space[:n])
        if scaled is None:
            torch.sum(torch.mul(dy, scale, out=z[at]), 1, out=dshift[at])
            continue
        moved, *sums = _normalised_backward(
            dy[None],
            z[at][None],
            mean[at][None],
            rstd[at][None],
            scaled[at],
            1,
            n,
            batch,
            n,
            [True] * 3,
        )
        z[at] = moved[0]
        dgain[at], dshift[at] = sums
    if gain is None:
        return None, dshift.view(grad.shape[:2])
    dgain, dshift = (each.mul_(scale).view(grad.shape[:2]) for each in (dgain, dshift))
    return dgain, dshift
