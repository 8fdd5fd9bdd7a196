"""Gradients of stacked clients: their form, clipping, and what a method adds to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.core.local_training.embedding_rows import norms, scaled
from coterie.core.local_training.linear_layers import Outer
from coterie.core.tensors import tree

Grads = Mapping[str, Tensor | Outer]  # name -> (C, ...)
Pull = Callable[[dict[str, Tensor], Any], dict[str, Tensor]]
"""Gradients of what a method adds to the loss, from stacked parameters and a stacked context.

They are dense: a table whose own gradient is sparse is stepped as a whole where it is pulled."""


def multiplied_out(grads: Grads) -> dict[str, Tensor]:
    """Write out what is given by its factors."""
    return {n: g.dense() if isinstance(g, Outer) else g for n, g in grads.items()}


def clipped(
    grads: dict[str, Tensor], clip: float | Tensor, spare: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Shorten every row of gradients to a largest L2 norm over all parameters.

    Args:
        grads: each ``(C, ...)``, dense or sparse.
        clip: one for all or ``(C,)``; as `torch.nn.utils.clip_grad_norm_`.
        spare: what an earlier call gave and nobody reads any more, or ``{}``; it is written over
            and returned. Fresh memory at every step costs as much as the rest of clipping.
    """
    each = [
        norms(grad)
        if grad.is_sparse
        else torch.linalg.vector_norm(grad.reshape(len(grad), -1), dim=1)
        for grad in grads.values()
    ]
    norm = torch.linalg.vector_norm(torch.stack(each), dim=0)
    # A number would be multiplied by the reciprocal, which rounds otherwise than one a client.
    largest = torch.as_tensor(clip, dtype=norm.dtype, device=norm.device)
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    if factor.is_cpu and len(factor) == 1 and float(factor) >= 1.0:
        return grads  # a product with 1 would change nothing, in a tenth of the step's time
    found: dict[str, Tensor] = {} if spare is None or not factor.is_cpu else spare
    for name, grad in grads.items():
        if grad.is_sparse:
            found[name] = scaled(grad, factor)
            continue
        share = tree.columns(factor, grad).to(grad.dtype)
        found[name] = torch.mul(grad, share, out=found.get(name))
    return found


def towards(strength: float | Tensor) -> Pull:
    """Pull of μ/2 ‖w - v‖² towards the context v, each of its tensors ``(C, ...)``.

    Parameters that the context does not have, as those that are not shared, are not pulled.

    Example:
        >>> import torch
        >>> pull = towards(0.5)
        >>> pull({"w": torch.ones(1, 1)}, {"w": torch.zeros(1, 1)})["w"].item()
        0.5
    """
    return lambda params, context: {
        name: strength * (params[name] - near) for name, near in context.items()
    }


def pulled(grads: Grads, more: dict[str, Tensor]) -> Grads:
    """Add dense gradients, where there are any."""
    return {n: _sum(grad, more[n]) if n in more else grad for n, grad in grads.items()}


def _sum(grad: Tensor | Outer, more: Tensor) -> Tensor | Outer:
    # Torch adds a sparse one to a dense one, and not the other way round.
    return grad.with_rest(more) if isinstance(grad, Outer) else more + grad
