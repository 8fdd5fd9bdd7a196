"""Linear layers that note their inputs and outputs while a tape is open.

Autograd would multiply both factors of a weight's gradient out (`core.local_training.outer`). So a
layer on a tape computes with a weight that autograd does not see, and the gradient in its outputs,
which autograd gives, is one factor; its inputs are the other. Works for one client, and for clients
stacked by `torch.func.vmap`, also where their samples are in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.local_training.deferred import ReadElsewhere, Withheld

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
            `coterie.core.local_training.deferred.Deferred`, as one client sees them.
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
