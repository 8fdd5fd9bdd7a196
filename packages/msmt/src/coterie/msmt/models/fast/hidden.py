"""Hidden layers of many networks side by side: linear, batch normalisation, ReLU, dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coterie.msmt.models.fast.chunks import chunks, pieces
from coterie.msmt.models.fast.dropout import Dropout
from coterie.msmt.models.fast.linear import (
    common_input_gradient,
    input_gradient,
    mapped,
    runs,
    weight_gradient,
)

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
