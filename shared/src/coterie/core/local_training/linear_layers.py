"""Gradients of linear layers: noted on a tape, left as products, added to the weights together.

The gradient of a weight W of y = x Wᵀ is (dL/dy)ᵀ x, as large as W, and made of two factors that
are as small as a batch. A step W - lr (dL/dy)ᵀ x is one matrix product that adds to W: the gradient
itself, written to memory and read again, takes as long as the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.tensors import tree


@dataclass(frozen=True)
class Outer:
    """Gradients of weights ``(K, out, in)`` of K clients: ``leftᵀ right + rest``.

    Attributes:
        left: ``(K, n, out)`` gradients in the layer's outputs.
        right: ``(K, n, in)`` inputs of the layer.
        rest: ``(K, out, in)`` what else there is of the gradient; None for nothing.

    Example:
        >>> Outer(torch.ones(1, 2, 1), torch.ones(1, 2, 3)).dense().tolist()
        [[[2.0, 2.0, 2.0]]]
    """

    left: Tensor
    right: Tensor
    rest: Tensor | None = None

    def dense(self) -> Tensor:
        """The gradients themselves."""
        if self.rest is None:
            return torch.bmm(self.left.mT, self.right)
        return torch.baddbmm(self.rest, self.left.mT, self.right)

    def with_rest(self, more: Tensor) -> Outer:
        """Add dense gradients."""
        return replace(self, rest=more if self.rest is None else self.rest + more)

    def apart_from(self, memory: set[int]) -> Outer:
        """The same, in memory of its own where it lies in some storage; these are addresses."""
        left, right, rest = (
            None if part is None else part.clone() if address(part) in memory else part
            for part in (self.left, self.right, self.rest)
        )
        assert left is not None
        assert right is not None
        return Outer(left, right, rest)

    def descend(
        self, weight: Tensor, lr: float | Tensor, decay: float, *, in_place: bool
    ) -> Tensor:
        """One step of gradient descent on weights ``(K, out, in)``.

        Args:
            weight: as they are.
            lr: learning rate, one for all or ``(K,)``.
            decay: pull to zero, added to the gradient.
            in_place: whether ``weight`` may be written over.
        """
        # The same product for one rate and for one a client, so that equal rates give equal bits.
        left = self.left * (tree.columns(lr, self.left) if isinstance(lr, Tensor) else lr)
        keep: float | Tensor = 1.0 - lr * decay
        out = weight if in_place else weight.clone()
        if isinstance(keep, Tensor):
            out.mul_(tree.columns(keep, out).to(out.dtype))
            keep = 1.0
        if self.rest is not None:
            descended(out.mul_(keep), self.rest, lr, out)
            keep = 1.0
        if len(out) == 1:  # the batched form of one product costs a sixth of it
            out[0].addmm_(left[0].mT, self.right[0], beta=keep, alpha=-1)
            return out
        return out.baddbmm_(left.mT, self.right, beta=keep, alpha=-1)


def joined(terms: list[tuple[Tensor, Tensor]], rest: Tensor | None) -> Outer:
    """Make one of the gradients that a weight gets where it is used several times."""
    (left, right), *more = terms
    if more:
        left = torch.cat([each for each, _ in terms], 1)
        right = torch.cat([each for _, each in terms], 1)
    return Outer(left, right, rest)


def address(tensor: Tensor) -> int:
    """Where the memory of a tensor begins."""
    tensor = tensor._values() if tensor.is_sparse else tensor
    return tensor.untyped_storage().data_ptr()


def descended(
    value: Tensor, direction: Tensor, lr: float | Tensor, out: Tensor | None = None
) -> Tensor:
    """``value - lr direction``, ``(K, ...)``; into ``out``, which may be ``value``.

    One rate for all and equal rates, ``(K,)``, give the same bits.
    """
    if isinstance(lr, Tensor) and lr.dim():
        rate = tree.columns(lr, value).to(value.dtype)
        return torch.addcmul(value, rate, direction, value=-1, out=out)
    return torch.add(value, direction, alpha=-float(lr), out=out)


# Large weights whose steps are kept as products, and added to the weights together.
#
# A step of a weight W of y = x Wᵀ adds leftᵀ right (an `Outer`), which has to read and write W,
# megabytes that no cache holds. While few samples have been seen,
#
#     x Wᵀ = x W₀ᵀ + (x rightᵀ) left
#
# costs less, with the factors of all steps so far one below the other. W₀ is only read; clients
# that start from the same model share it, and its product with the samples of all of them is one.

LARGE = 1 << 18
"""Least numbers of a weight that is worth it: 1 MiB, which second-level caches hold."""


def room(rows: int, columns: int) -> int:
    """Samples whose products are half as much work as a weight ``(rows, columns)`` itself.

    Example:
        >>> room(1400, 784)
        251
    """
    return rows * columns // (2 * (rows + columns))


class ReadElsewhere(Exception):
    """A weight was read outside of its linear layer, where its steps are not in it yet."""


class Withheld(Tensor):
    """Stands in a module for a weight that only its layer may read.

    Raises:
        ReadElsewhere: anything else reads it.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse every operation."""
        raise ReadElsewhere


WITHHELD = Tensor._make_subclass(Withheld, torch.empty(0, device="meta"))


@dataclass
class Deferred:
    """A weight of K clients: ``base + leftᵀ right``.

    Attributes:
        own: ``(K, out, in)`` where the clients' weights are written to.
        base: ``(out, in)`` of all of them, until their own are written; then None.
        left: ``(K, n, out)`` and more room.
        right: ``(K, n, in)`` and more room.
        used: n.
    """

    own: Tensor
    base: Tensor | None
    left: Tensor = field(init=False)
    right: Tensor = field(init=False)
    used: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        clients, rows, columns = self.own.shape
        most = room(rows, columns)
        self.left = self.own.new_empty(clients, most, rows)
        self.right = self.own.new_empty(clients, most, columns)

    def factors(self) -> tuple[Tensor, Tensor]:
        """``(K, n, out)`` and ``(K, n, in)``."""
        return self.left[:, : self.used], self.right[:, : self.used]

    def descend(self, grad: Outer, lr: float | Tensor) -> None:
        """Keep a step of gradient descent."""
        rate = tree.columns(lr, grad.left) if isinstance(lr, Tensor) else lr
        left, more = grad.left * -rate, grad.left.shape[1]
        if self.used + more > self.left.shape[1]:
            self.settle()
        if more > self.left.shape[1]:
            self.own.baddbmm_(left.mT, grad.right)
            return
        self.left[:, self.used : self.used + more] = left
        self.right[:, self.used : self.used + more] = grad.right
        self.used += more

    def settle(self) -> None:
        """Write the weights."""
        left, right = self.factors()
        if self.base is not None:
            self.own.copy_(self.base.expand_as(self.own))
            self.base = None
        self.own.baddbmm_(left.mT, right)
        self.used = 0

    def cut(self, active: int) -> Deferred:
        """Write the weights of all but the first, and go on with those."""
        rest = self._part(slice(active, None))
        rest.settle()
        return self._part(slice(active))

    def _part(self, rows: slice) -> Deferred:
        part = object.__new__(Deferred)
        part.own, part.base, part.used = self.own[rows], self.base, self.used
        part.left, part.right = self.left[rows], self.right[rows]
        return part


# Linear layers that note their inputs and outputs while a tape is open.
#
# Autograd would multiply both factors of a weight's gradient out (`core.local_training.outer`). So
# a layer on a tape computes with a weight that autograd does not see, and the gradient in its
# outputs, which autograd gives, is one factor; its inputs are the other. Works for one client, and
# for clients stacked by `torch.func.vmap`, also where their samples are in turn.

_functorch: Any = torch._C._functorch


@dataclass(frozen=True)
class Tap:
    """A call of a linear layer.

    Attributes:
        name: of its weight.
        inputs: what went in, ``(..., in)``, clients first where they are stacked.
        outputs: the tensor in autograd's graph, its axes as they lie.
        axes: those of the outputs that `vmap` has hidden, by its levels, outer first.
    """

    name: str
    inputs: Tensor
    outputs: Tensor
    axes: dict[int, int]

    def factors(self, slope: Tensor, n_clients: int) -> tuple[Tensor, Tensor]:
        """Both factors of the weights' gradient, ``(K, n, out)`` and ``(K, n, in)``.

        Args:
            slope: gradient in ``outputs``.
            n_clients: K.
        """
        left = _in_front(slope, self.axes, self.axes)
        right = self.inputs.expand(*left.shape[:-1], -1)
        return _as_rows(left, n_clients), _as_rows(right, n_clients)


@dataclass
class Tape:
    """What the layers of a module note in one call.

    Attributes:
        wanted: the weights whose layers note anything, by name: leaves of autograd.
        zero: a leaf of autograd that is 0.
        kept: weights that are withheld from the module, by name: base, left and right as in
            `coterie.core.local_training.linear_layers.Deferred`, as one client sees them.
        taps: in the order of the calls.
    """

    wanted: Mapping[str, Tensor]
    zero: Tensor
    kept: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    taps: list[Tap] = field(default_factory=list)

    def wants(self, name: str, weight: Tensor) -> bool:
        """Whether a layer's weight is one of them itself, not something made of it."""
        wanted = self.wanted.get(name)
        return wanted is not None and _physical(weight)[0] is wanted


_OPEN: ContextVar[Tape | None] = ContextVar("open tape of linear layers", default=None)


@contextmanager
def taped(wanted: Mapping[str, Tensor]) -> Iterator[Tape]:
    """Note the calls of linear layers inside, those whose weights are wanted; see `Tape`."""
    tape = Tape(wanted, torch.zeros((), requires_grad=True))
    token = _OPEN.set(tape)
    try:
        yield tape
    finally:
        _OPEN.reset(token)


class TappedLinear(nn.Linear):
    """A linear layer that notes its calls; without a tape it is the layer that it was.

    Attributes:
        tap: name of its weight.
    """

    tap: str

    def forward(self, input: Tensor) -> Tensor:
        """As `torch.nn.Linear.forward`."""
        tape = _OPEN.get()
        weight = self._parameters["weight"]
        assert weight is not None
        if isinstance(weight, Withheld):
            return self._by_parts(input)
        if tape is None or _transformed(input, weight) or not tape.wants(self.tap, weight):
            return F.linear(input, weight, self.bias)
        return self._noted(tape, input, F.linear(input, weight.detach(), self.bias))

    def _by_parts(self, input: Tensor) -> Tensor:
        tape = _OPEN.get()
        if tape is None or _transformed(input):
            raise ReadElsewhere
        base, left, right = tape.kept[self.tap]
        outputs = F.linear(input, base, self.bias)
        if len(left):
            outputs = outputs + (input @ right.mT) @ left
        return self._noted(tape, input, outputs)

    def _noted(self, tape: Tape, input: Tensor, outputs: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return outputs
        if not _physical(outputs)[0].requires_grad:  # the first layer, without a bias
            outputs = outputs + tape.zero
        physical, axes = _physical(outputs)
        inputs = _in_front(*_physical(input.detach()), axes)
        tape.taps.append(Tap(self.tap, inputs, physical, axes))
        return outputs


def tap_linear_layers(module: nn.Module, names: Mapping[int, str]) -> None:
    """Make the linear layers of a module note their calls.

    Args:
        module: is changed.
        names: of its parameters, by their identity.
    """
    for part in module.modules():
        if type(part) is nn.Linear and isinstance(part._parameters.get("weight"), Tensor):
            part.__class__ = TappedLinear
            part.tap = names[id(part._parameters["weight"])]  # type: ignore[assignment]


def _transformed(*tensors: Tensor) -> bool:
    """Whether a derivative by `torch.func` is being taken, whose tensors are others yet."""
    return any(_functorch.is_gradtrackingtensor(tensor) for tensor in tensors)


def _physical(tensor: Tensor) -> tuple[Tensor, dict[int, int]]:
    """The tensor beneath those of `vmap`, and its hidden axes by level, outer first.

    Each counts among the axes that are left when those before it are taken out.
    """
    axes = {}
    while _functorch.is_batchedtensor(tensor):
        axes[_functorch.maybe_get_level(tensor)] = _functorch.maybe_get_bdim(tensor)
        tensor = _functorch.get_unwrapped(tensor)
    return tensor, dict(reversed(axes.items()))


def _in_front(tensor: Tensor, axes: dict[int, int], levels: Iterable[int]) -> Tensor:
    """Move hidden axes to the front, level by level; one that it has not is of length 1."""
    for place, level in enumerate(levels):
        if level not in axes:
            tensor = tensor.unsqueeze(place)
        elif axes[level]:
            tensor = tensor.movedim(place + axes[level], place)
    return tensor


def _as_rows(tensor: Tensor, n_clients: int) -> Tensor:
    return tensor.reshape(n_clients, -1, tensor.shape[-1])
