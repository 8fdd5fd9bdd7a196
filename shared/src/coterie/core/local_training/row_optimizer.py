"""Optimizers over stacked parameters: one optimizer a row, all rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.adam import adam

from coterie.core.local_training.embedding_rows import norms, scaled, touched
from coterie.core.local_training.linear_layers import Outer, address, descended
from coterie.core.tensors import tree

Params = dict[str, Tensor]  # name -> (C, ...)
Grads = Mapping[str, Tensor | Outer]  # of these


@dataclass(frozen=True)
class RowState:
    """State of C optimizers; may be a field of a `Private`.

    Attributes:
        steps: ``(C,)`` int64, steps that each row has made.
        moments: what the optimizer remembers, name of the moment -> name of the parameter ->
            ``(C, ...)``.
    """

    steps: Tensor
    moments: dict[str, Params]


@dataclass(frozen=True, kw_only=True)
class RowOptimizer(ABC):
    """Optimize every row of stacked parameters as a `torch.optim` optimizer of its own would.

    `torch.optim` itself refuses a learning rate a row, shares one step count, and lets weight decay
    and momentum move a row that has finished.

    A sparse gradient (see `Touched`) moves the rows of a table that it names, in time and, in
    place, memory of these alone. Moments and weight decay are of the named rows only: what a dense
    gradient with zeros would do to the others is left out. The step count is the client's.

    Attributes:
        factored: whether steps are made of `Outer` gradients without multiplying them out.
        weight_decay: L2 pull, added to the gradient.
    """

    factored: ClassVar[bool] = False
    weight_decay: float = 0.0

    @property
    @abstractmethod
    def moments(self) -> tuple[str, ...]:
        """Names of the moments kept for each parameter."""

    @abstractmethod
    def _direction(self, grad: Tensor, moments: Params, steps: Tensor) -> tuple[Tensor, Params]:
        """Descent direction before the learning rate, and the new moments.

        Args:
            grad: ``(C, ...)``.
            moments: of this parameter, by name of the moment.
            steps: ``(C, 1, ...)`` int64, this step included; broadcasts against ``grad``.
        """

    def _lazy_direction(
        self, grad: Tensor, moments: Params, steps: Tensor
    ) -> tuple[Tensor, Params]:
        """`_direction` for the rows of a table that a sparse gradient names."""
        return self._direction(grad, moments, steps)

    def begin(self, params: Params) -> RowState:
        """State before the first step."""
        first = next(iter(params.values()))
        steps = torch.zeros(first.shape[0], dtype=torch.int64, device=first.device)
        zeros = {
            moment: tree.map_tensors(torch.zeros_like, dict(params)) for moment in self.moments
        }
        return RowState(steps, zeros)

    def step(
        self,
        params: Params,
        grads: Grads,
        state: RowState,
        lr: float | Tensor,
        *,
        clip: float | Tensor | None = None,
        in_place: bool = False,
    ) -> tuple[Params, RowState]:
        """Make one step in every row; nothing given is changed unless ``in_place``.

        Args:
            params: each ``(C, ...)``.
            grads: as ``params``, of tables also sparse, of weights also `Outer`.
            state: of the rows.
            lr: learning rate, one for all or ``(C,)``.
            clip: largest L2 norm of a row's gradient over all its parameters, one for all or
                ``(C,)``; as `torch.nn.utils.clip_grad_norm_`.
            in_place: whether ``params`` and the moments are the caller's own, share no memory with
                one another and may be written over; gradients never are. What counts is what is
                returned; nothing of it lies in the memory of gradients.
        """
        plain = grads if self.factored and clip is None else multiplied_out(grads)
        if clip is not None:
            plain = clipped(multiplied_out(plain), clip)
        outer = {name: grad for name, grad in plain.items() if isinstance(grad, Outer)}
        given = {name: grad for name, grad in plain.items() if isinstance(grad, Tensor)}
        tables = {name: params[name] for name, grad in given.items() if grad.is_sparse}
        dense = {name: params[name] for name in given if name not in tables}
        writes = in_place and state.steps.is_cpu  # elsewhere into tables and weights alone
        if in_place and (writes or tables or outer):
            memory = {address(value) for value in params.values()}
            given = {n: g.clone() if address(g) in memory else g for n, g in given.items()}
            outer = {name: grad.apart_from(memory) for name, grad in outer.items()}
        new, after = self._moved(dense, given, state, lr, writes)
        for name, grad in outer.items():
            new[name] = grad.descend(params[name], lr, self.weight_decay, in_place=in_place)
        if not tables:
            return _like(params, new), after
        rows, of_rows = self._rows_moved(tables, given, state, lr, in_place)
        moments = {name: _like(params, after.moments[name], of_rows[name]) for name in self.moments}
        return _like(params, new, rows), RowState(after.steps, moments)

    def _rows_moved(
        self, tables: Params, grads: Params, state: RowState, lr: float | Tensor, in_place: bool
    ) -> tuple[Params, dict[str, Params]]:
        """Step the rows of tables that their gradients name; new tables, and their moments."""
        new: Params = {}
        moments: dict[str, Params] = {moment: {} for moment in self.moments}
        for name, value in tables.items():
            named = touched(grads[name])
            grad, old, mine = named.values, named.of(value), named.clients
            if self.weight_decay:
                grad = torch.add(grad, old, alpha=self.weight_decay)
            steps = tree.columns(state.steps[mine] + 1, grad)
            kept = {moment: named.of(state.moments[moment][name]) for moment in self.moments}
            direction, kept = self._lazy_direction(grad, kept, steps)
            rate = lr[mine] if isinstance(lr, Tensor) and lr.dim() else lr
            rows = descended(old, direction, rate)
            new[name] = named.put(value, rows, in_place=in_place)
            for moment in self.moments:
                table = state.moments[moment][name]
                moments[moment][name] = named.put(table, kept[moment], in_place=in_place)
        return new, moments

    def _moved(
        self, params: Params, grads: Params, state: RowState, lr: float | Tensor, in_place: bool
    ) -> tuple[Params, RowState]:
        steps = state.steps + 1
        new: Params = {}
        moments: dict[str, Params] = {moment: {} for moment in self.moments}
        for name, value in params.items():
            grad = grads[name]
            if self.weight_decay:
                grad = torch.add(grad, value, alpha=self.weight_decay)
            kept = {moment: state.moments[moment][name] for moment in self.moments}
            direction, kept = self._direction(grad, kept, tree.columns(steps, value))
            if in_place:
                kept = _apart(kept, grads[name])
            out = value if in_place else None
            new[name] = descended(value, direction, lr, out)
            for moment in self.moments:
                moments[moment][name] = kept[moment]
        return new, RowState(steps, moments)


@dataclass(frozen=True, kw_only=True)
class RowSGD(RowOptimizer):
    """Stochastic gradient descent, as `torch.optim.SGD` without momentum.

    Example:
        >>> opt = RowSGD()
        >>> params = {"w": torch.zeros(2, 1)}
        >>> lr = torch.tensor([1.0, 0.1])
        >>> opt.step(params, {"w": torch.ones(2, 1)}, opt.begin(params), lr)[0]["w"].tolist()
        [[-1.0], [-0.10000000149011612]]
    """

    factored = True

    @property
    def moments(self) -> tuple[str, ...]:
        """None."""
        return ()

    def _direction(self, grad: Tensor, moments: Params, steps: Tensor) -> tuple[Tensor, Params]:
        return grad, moments

    def _moved(
        self, params: Params, grads: Params, state: RowState, lr: float | Tensor, in_place: bool
    ) -> tuple[Params, RowState]:
        new: Params = {}
        for name, value in params.items():
            grad = grads[name]
            if self.weight_decay:
                grad = torch.add(grad, value, alpha=self.weight_decay)
            new[name] = descended(value, grad, lr, value if in_place else None)
        return new, RowState(state.steps + 1, state.moments)


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


def multiplied_out(grads: Grads) -> Params:
    """Write out what is given by its factors."""
    return {n: g.dense() if isinstance(g, Outer) else g for n, g in grads.items()}


def clipped(grads: Params, clip: float | Tensor, spare: Params | None = None) -> Params:
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
    found: Params = {} if spare is None or not factor.is_cpu else spare
    for name, grad in grads.items():
        if grad.is_sparse:
            found[name] = scaled(grad, factor)
            continue
        share = tree.columns(factor, grad).to(grad.dtype)
        found[name] = torch.mul(grad, share, out=found.get(name))
    return found


def _like(params: Params, *parts: Params) -> Params:
    """Join parts, of which later ones count, in the order of the parameters."""
    found = {name: value for part in parts for name, value in part.items()}
    return {name: found[name] for name in params}


def _equal(numbers: Tensor) -> bool:
    return bool((numbers == numbers[:1]).all())


def _flat(*stacks: Params) -> bool:
    """Whether torch's fused kernel can go through the memory as it lies; it looks at no strides."""
    return all(v.is_cpu and v.is_contiguous() for stack in stacks for v in stack.values())


def _apart(kept: Params, grad: Tensor) -> Params:
    """Copy moments that lie in the memory of a gradient, which is the caller's."""
    return {n: v.clone() if address(v) == address(grad) else v for n, v in kept.items()}
