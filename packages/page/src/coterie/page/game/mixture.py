"""The loss of a mixture of models on one set of samples, as a function of the mixture's weights.

CE(sum_i p_i w_i; D) over p >= 0, sum p = 1. Where scores are linear in the parameters (softmax
regression) this is convex, so that `coterie.core.solvers.simplex` certifies its minimum; for nets
it gives the best found and no bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.local_training.losses import MethodOf
from coterie.core.local_training.row_optimizer import Params
from coterie.core.solvers.simplex import Minimum, Objective, minimise


class SoftmaxMixture:
    """Cross-entropy of mixed softmax regressions; convex.

    Scores are linear in the parameters, so a gradient costs two products of ``(n, d)`` with
    ``(d, K)``, and no tensor of every client's scores is made.

    Args:
        weight: ``(N, K, d)`` of the clients' layers, K classes.
        bias: ``(N, K)``.
        x: ``(n, d)`` samples of the follower.
        y: ``(n,)`` int64 classes.
        dtype: to compute in; a bound needs the default, an answer that is good enough takes half
            the time in float32.

    Raises:
        ValueError: parameters of a client are not finite; leave that client out.
    """

    convex = True

    def __init__(
        self, weight: Tensor, bias: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype = torch.float64
    ) -> None:
        stacked = torch.cat([weight, bias[..., None]], -1).to(dtype)
        if not stacked.isfinite().all():
            raise ValueError("a client's parameters are not finite: mix the other clients only")
        self.n = stacked.shape[0]
        self._shape = stacked.shape[1:]
        self._flat = stacked.reshape(self.n, -1)
        self._x = torch.cat([x, torch.ones_like(x[:, :1])], -1).to(dtype)
        self._y = y[:, None]

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss and gradient at ``p``, ``(N,)`` float64."""
        scores = self._x @ (p.to(self._flat) @ self._flat).reshape(self._shape).T
        logs = scores.log_softmax(-1)
        right = logs.gather(1, self._y)
        error = logs.exp_().scatter_(1, self._y, right.expm1())
        slope = self._flat @ (error.T @ self._x).reshape(-1) / len(self._x)
        return -float(right.mean()), slope.double()


class ModelMixture:
    """Loss of mixed networks by autograd; not convex in general.

    Args:
        module: has ``loss(batch)``, the mean over the samples.
        stacked: every parameter of the clients, ``(N, ...)``.
        batches: the follower's samples, in parts that fit into memory.
    """

    convex = False

    def __init__(
        self, module: nn.Module, stacked: Params, batches: Sequence[dict[str, Tensor]]
    ) -> None:
        self._loss = MethodOf(module, "loss")
        self._stacked = {name: value.detach() for name, value in stacked.items()}
        self._batches = batches
        self.n = next(iter(stacked.values())).shape[0]

    def slope(self, p: Tensor) -> tuple[float, Tensor]:
        """Loss and gradient at ``p``, ``(N,)`` float64."""
        mixed = {
            name: torch.tensordot(p.to(value), value, 1).requires_grad_()
            for name, value in self._stacked.items()
        }
        n_samples = sum(len(batch["y"]) for batch in self._batches)
        total, slope = 0.0, torch.zeros(self.n, dtype=torch.float64)
        for batch in self._batches:
            loss = self._loss(mixed, batch) * (len(batch["y"]) / n_samples)
            slopes = torch.autograd.grad(loss, list(mixed.values()), materialize_grads=True)
            total += float(loss.detach())
            for value, part in zip(self._stacked.values(), slopes, strict=True):
                slope += (value.flatten(1) @ part.flatten()).double()
        return total, slope


def best_weights(mixture: Objective, tolerance: float, max_steps: int = 2000) -> Minimum:
    """Minimise over the simplex from equal weights, see `minimise`.

    Raises:
        UserError: the mean of the models has no finite loss.
    """
    try:
        return minimise(mixture, tolerance=tolerance, max_steps=max_steps)
    except ValueError as error:
        raise UserError(
            "the mean of the clients' models has no finite loss: lower 'train.lr' or set "
            "'train.clip'"
        ) from error
