"""Hidden layers of many networks side by side: linear, batch normalisation, ReLU, dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coterie.msmt.models.fast.chunks import chunks
from coterie.msmt.models.fast.dropout import Dropout

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
    fixed: int | None = None,
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
        fixed: first rows of ``x`` whose gradient nobody wants, only where all see the same;
            it is 0 there. None = none.

    Returns:
        Outputs ``(G, n_out, B)``; means and 1/sqrt(variance + eps) of ``weight x``,
        ``(G, n_out)``, without gradients, empty without normalisation.

    Raises:
        ValueError: the batch has one sample, which has no variance.
    """
    if gain is not None and x.shape[-1] < 2:
        raise ValueError(
            f"batch normalisation needs batches of 2 samples or more in training, not {x.shape[-1]}"
        )
    found: tuple[Tensor, Tensor, Tensor] = _Hidden.apply(
        x, weight, gain, shift, dropout, eps, fixed or 0
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
        (groups, n_out), batch = shift.shape, x.shape[-1]
        z = x.new_empty(groups, n_out, batch)
        out = torch.empty_like(z)
        mean, rstd = shift.new_empty(2, groups if gain is not None else 0, n_out)
        scaled = None if gain is None else gain * dropout.scale
        moved = shift * dropout.scale
        for g in range(groups):
            torch.mm(weight[g % len(weight)], x if x.dim() == 2 else x[g], out=z[g])
            bits = dropout.bits(n_out, batch) if dropout.dropped else None
            for rows in chunks(z[g]):
                if scaled is None:
                    y = torch.add(moved[g, rows, None], z[g, rows], alpha=dropout.scale)
                else:
                    y, mean[g, rows], rstd[g, rows] = _normal(
                        z[g, rows], scaled[g, rows], moved[g, rows], eps
                    )
                if bits is None:
                    torch.clamp_min(y, 0, out=out[g, rows])
                    continue
                _kept(y, bits[rows], dropout.bound, out[g, rows]).relu_()
        ctx.save_for_backward(x, weight, gain, None if gain is None else z, out, mean, rstd)
        ctx.scale, ctx.fixed = dropout.scale, fixed
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)
        return out, mean, rstd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * 7
        if grad is None:
            return nothing
        x, weight, gain, z, out, mean, rstd = ctx.saved_tensors
        grad = grad.contiguous()
        # Of z nothing is needed once its gradient is there, so that takes its place.
        dz = torch.empty_like(out) if z is None else z
        grads = grad.new_empty(2, *out.shape[:2])
        scaled = None if gain is None else gain * ctx.scale
        space = torch.empty_like(out[0, : next(chunks(out[0])).stop])
        for g in range(len(out)):
            for rows in chunks(out[g]):
                dy = _where_above(
                    grad[g, rows], out[g, rows], 0, grad_input=space[: rows.stop - rows.start]
                )
                if scaled is None:
                    torch.mul(dy, ctx.scale, out=dz[g, rows])
                    torch.sum(dz[g, rows], 1, out=grads[1, g, rows])
                    continue
                moved, grads[0, g, rows], grads[1, g, rows] = _normal_backward(
                    dy, z[g, rows], mean[g, rows], rstd[g, rows], scaled[g, rows]
                )
                dz[g, rows].copy_(moved)
        if gain is not None:
            grads *= ctx.scale
        dx, dweight = _linear_backward(ctx, dz, x, weight)
        return dx, dweight, None if gain is None else grads[0], grads[1], None, None, None


def _normal(z: Tensor, gain: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise rows ``(n, B)``, then scale and shift each; gives means and rstds too."""
    n, batch = z.shape
    y, mean, rstd = _normalised(z[None], gain, shift, 1, n, batch, n, eps)
    return y[0], mean[0], rstd[0]


def _normal_backward(
    dy: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `_normal` in z, gain and shift."""
    n, batch = z.shape
    dz, dgain, dshift = _normalised_backward(
        dy[None], z[None], mean[None], rstd[None], gain, 1, n, batch, n, [True] * 3
    )
    return dz[0], dgain, dshift


def _kept(y: Tensor, bits: Tensor, bound: float, out: Tensor) -> Tensor:
    """Write y where the bits are above a bound, 0 elsewhere, into ``out``."""
    # What torch calls the gradient of a threshold: a select that is vectorised.
    return _where_above(y, bits.to(y.dtype), bound, grad_input=out)


def _linear_backward(
    ctx: Any, dz: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of weight @ x in x and weight."""
    need_x, need_weight = ctx.needs_input_grad[:2]
    n_weights = len(weight)
    dweight = dz.new_empty(weight.shape) if need_weight else None
    dx = _zeros_above(x, ctx.fixed) if need_x else None
    for g, each in enumerate(dz):
        n, seen = g % n_weights, x if x.dim() == 2 else x[g]
        if dweight is not None and g < n_weights:
            torch.mm(each, seen.mT, out=dweight[n])
        elif dweight is not None:
            dweight[n].addmm_(each, seen.mT)
        if dx is not None and x.dim() == 2:
            dx[ctx.fixed :].addmm_(weight[n, :, ctx.fixed :].mT, each)
        elif dx is not None:
            torch.mm(weight[n].mT, each, out=dx[g])
    return dx, dweight


def _zeros_above(x: Tensor, fixed: int) -> Tensor:
    return torch.zeros_like(x) if x.dim() == 2 else torch.empty_like(x)
