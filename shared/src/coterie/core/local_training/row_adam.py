"""Adam over stacked parameters: one optimizer a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adam import adam

from coterie.core.local_training.row_optimizer import Params, RowOptimizer, RowState


@dataclass(frozen=True, kw_only=True)
class RowAdam(RowOptimizer):
    """Adam (Kingma and Ba, ICLR 2015, Algorithm 1), as `torch.optim.Adam`, own step count a row.

    Sparse gradients are stepped as by `torch.optim.SparseAdam`. That is another rule, even for a
    row that is named in every step: ε is added to the root before its bias is corrected.

    Attributes:
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def moments(self) -> tuple[str, ...]:
        """First and second moment of the gradient."""
        return ("exp_avg", "exp_avg_sq")

    def _direction(self, grad: Tensor, moments: Params, steps: Tensor) -> tuple[Tensor, Params]:
        return self._ratio(grad, moments, steps, lazy=False)

    def _lazy_direction(
        self, grad: Tensor, moments: Params, steps: Tensor
    ) -> tuple[Tensor, Params]:
        return self._ratio(grad, moments, steps, lazy=True)

    def _ratio(
        self, grad: Tensor, moments: Params, steps: Tensor, *, lazy: bool
    ) -> tuple[Tensor, Params]:
        beta1, beta2 = self.betas
        # In place on temporaries only: fewer buffers stay in the cache, and no bit changes.
        mean = (beta1 * moments["exp_avg"]).add_(grad * (1 - beta1))
        square = (beta2 * moments["exp_avg_sq"]).add_(grad.square().mul_(1 - beta2))
        # In float32, 1 - 0.999^t would lose half its digits.
        unbias1 = (1 - beta1 ** steps.double()).to(grad.dtype)
        unbias2 = (1 - beta2 ** steps.double()).sqrt().to(grad.dtype)
        # MKL takes five times as long for the root of an exact zero as for that of a tiny number.
        root = square.clamp(min=torch.finfo(square.dtype).tiny).sqrt_()
        root = root.add_(self.eps).div_(unbias2) if lazy else root.div_(unbias2).add_(self.eps)
        direction = (mean / unbias1).div_(root)
        return direction, {"exp_avg": mean, "exp_avg_sq": square}

    def _moved(
        self, params: Params, grads: Params, state: RowState, lr: float | Tensor, in_place: bool
    ) -> tuple[Params, RowState]:
        alike = len(state.steps) == 1 or (not isinstance(lr, Tensor) and _equal(state.steps))
        if not (in_place and alike and _flat(params, *state.moments.values())):
            return super()._moved(params, grads, state, lr, in_place)
        means, squares = (state.moments[moment] for moment in self.moments)
        adam(
            list(params.values()),
            [grads[name].contiguous() for name in params],
            [means[name] for name in params],
            [squares[name] for name in params],
            [],
            list(state.steps[:1].float().repeat(len(params))),  # the kernel counts on in each
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )
        return params, RowState(state.steps + 1, state.moments)


def _equal(numbers: Tensor) -> bool:
    return bool((numbers == numbers[:1]).all())


def _flat(*stacks: Params) -> bool:
    """Whether torch's fused kernel can go through the memory as it lies; it looks at no strides."""
    return all(v.is_cpu and v.is_contiguous() for stack in stacks for v in stack.values())
