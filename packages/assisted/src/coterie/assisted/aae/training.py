"""Training of one organisation's autoencoder on the targets of all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.assisted.aae.batches import Batch, Draws, RowBatches
from coterie.assisted.aae.cells import Cells, Inputs, Pattern
from coterie.assisted.aae.network import AAE, DECODER, RATINGS, Params, value_and_gradients
from coterie.assisted.objective import Objective, Squared
from coterie.core.local_training.fit import fit
from coterie.core.local_training.losses import Batch as Named
from coterie.core.local_training.row_adam import RowAdam
from coterie.core.local_training.row_optimizer import RowState
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_LARGE = 1 << 16
_REST = "small ones"


@dataclass(frozen=True)
class Packing:
    """Two forms of parameters: as they are named, and with all small ones in one tensor.

    Clipping and Adam cost the same for a small tensor as for a few thousand numbers; with twenty
    of them that is a seventh of a step. Large ones stay as they are, so that nothing is copied.

    Attributes:
        shapes: of the named parameters.

    Example:
        >>> packing = Packing({"a": (2,), "b": (1, 1)})
        >>> packed = packing.pack({"a": torch.ones(2), "b": torch.zeros(1, 1)})
        >>> {name: value.tolist() for name, value in packed.items()}
        {'small ones': [1.0, 1.0, 0.0]}
        >>> packing.unpack(packed)["b"].tolist()
        [[0.0]]
    """

    shapes: dict[str, tuple[int, ...]]

    def pack(self, named: Params) -> Params:
        """Copy the small ones into one tensor."""
        packed = {name: named[name] for name in self._large}
        return packed | {_REST: torch.cat([named[name].flatten() for name in self._sizes])}

    def unpack(self, packed: Params) -> Params:
        """Name them again; nothing is copied."""
        named = {name: packed[name] for name in self._large}
        parts = zip(self._sizes, packed[_REST].split(list(self._sizes.values())), strict=True)
        return named | {name: part.view(self.shapes[name]) for name, part in parts}

    @cached_property
    def _large(self) -> list[str]:
        return [name for name, shape in self.shapes.items() if math.prod(shape) >= _LARGE]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Numbers in each small parameter."""
        sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        return {name: size for name, size in sizes.items() if size < _LARGE}


# The same loss by plain dense operations, for autograd: what is compared with.


def dense_loss(params: Params, batch: Batch, loss: Objective) -> Tensor:
    """Compute the mean loss over the cells of a batch, ``()``, with all ``(B, n_outputs)`` outputs.

    As `coterie.assisted.aae.network.value_and_gradients`, and differentiable.
    """
    ratings = dense(batch.inputs, batch.ratings)
    sides = {RATINGS: ratings, **batch.sides}
    codes = [_encode(params, name, features) for name, features in sides.items()]
    code = torch.stack(codes).sum(0)
    code = code if batch.keep is None else code * batch.keep
    hidden = torch.tanh(_linear(params, f"{DECODER}.hidden", code))
    return mean_over_cells(_linear(params, f"{DECODER}.wide", hidden), batch, loss)


def mean_over_cells(output: Tensor, batch: Batch, loss: Objective) -> Tensor:
    """Compute the mean loss over the cells of a batch, ``()``.

    Args:
        output: of all columns, ``(B, n_outputs)``.
        batch: what the step sees.
        loss: of single cells.
    """
    cells = batch.targets
    values = loss.loss(batch.values, output[cells.row.long(), cells.column.long()])
    if batch.counted is None:
        return values.sum() / max(len(values), 1)
    return (values * batch.counted).sum() / batch.counted.sum().clamp(min=1.0)


def _encode(params: Params, name: str, features: Tensor) -> Tensor:
    wide = features @ params[f"{name}.wide.weight"] + params[f"{name}.wide.bias"]
    return torch.tanh(_linear(params, f"{name}.code", torch.tanh(wide)))


def _linear(params: Params, name: str, values: Tensor) -> Tensor:
    return F.linear(values, params[f"{name}.weight"], params[f"{name}.bias"])


def dense(cells: Cells, values: Tensor) -> Tensor:
    """Write cells into a table of zeros, ``(B, n_columns)``.

    Args:
        cells: of B rows.
        values: of the cells, ``(n,)``.
    """
    table = values.new_zeros(cells.n_rows, cells.n_columns)
    table[cells.row.long(), cells.column.long()] = values
    return table


_SQUARED = Squared()  # of residuals


@dataclass(frozen=True)
class Plan:
    """How an autoencoder is trained; the defaults are the paper's (Table 6), for ML-100K.

    Attributes:
        epochs: passes over the rows.
        batch_rows: rows of a mini-batch.
        lr: learning rate of Adam.
        weight_decay: L2 pull of Adam.
        clip: largest norm of a gradient; None = any.
        input_masking: share of the own ratings that a step hides from the input, in [0, 1). An
            autoencoder that always sees what it must give learns to copy it.
        leave_out_visible: leave targets out of the loss that the input shows in the same step.
            Needs ``places`` in the inputs.

    Raises:
        ValueError: a value is out of its range.
    """

    epochs: int = 20
    batch_rows: int = 100
    lr: float = 1e-3
    weight_decay: float = 5e-4
    clip: float | None = 1.0
    input_masking: float = 0.0
    leave_out_visible: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_rows < 1:
            raise ValueError("epochs must not be negative, batches not be empty")
        if not 0.0 <= self.input_masking < 1.0:
            raise ValueError(f"input_masking must be in [0, 1), not {self.input_masking}")


@dataclass(frozen=True)
class Trained:
    """What training gives.

    Attributes:
        params: of the network, without a client axis.
        loss: ``()`` mean loss over the steps of this call; 0 without steps.
        epochs: number of epochs so far.
        state: of Adam, to go on; None = a fresh one.
    """

    params: Params
    loss: Tensor
    epochs: int
    state: RowState | None


def train(
    network: AAE,
    inputs: Inputs,
    pattern: Pattern,
    values: Tensor,
    plan: Plan,
    key: Key,
    *,
    loss: Objective = _SQUARED,
    start: Trained | None = None,
) -> Trained:
    """Train an autoencoder to give values at the cells of a pattern.

    Epochs are counted on from ``start``: training for two and then for three epochs gives the same
    bits as for five.

    Args:
        network: sizes.
        inputs: of m rows.
        pattern: cells of the targets, m rows of ``n_outputs`` columns.
        values: at these cells, ``(nnz,)``; the parameters get their dtype.
        plan: how to train.
        key: of all draws.
        loss: of each cell; its mean over a batch is minimised.
        start: where to go on; None = newly drawn parameters.

    Raises:
        ValueError: sizes do not fit together.

    Example:
        >>> from coterie.core.tensors.stacked import Ragged
        >>> cells = Ragged.from_lists([[0, 1], [1]])
        >>> ratings = torch.tensor([5.0, 3.0, 4.0])
        >>> inputs, targets = Inputs(cells, ratings, 2), Pattern(cells, 2)
        >>> network, key = AAE(2, 2, hidden=8, code=4, dropout=0.0), Key.from_seed(0)
        >>> first = train(network, inputs, targets, ratings, Plan(epochs=1), key)
        >>> later = train(network, inputs, targets, ratings, Plan(epochs=99), key, start=first)
        >>> bool(later.loss < first.loss), later.epochs
        (True, 100)
    """
    _check(network, inputs, pattern, values)
    if start is None:
        params = network.start(key.fold("start"), values.dtype)
        start = Trained(params, values.new_zeros(()), 0, None)
    batches = batches_of(network, inputs, pattern, values, plan, key)
    steps = Steps(batches, loss, Packing(network.shapes), start.epochs * batches.per_epoch)
    fitted = fit(
        steps.loss,
        tree.as_stack(steps.packing.pack(start.params)),
        steps,
        RowAdam(weight_decay=plan.weight_decay),
        plan.lr,
        plan.epochs * batches.per_epoch,
        state=start.state,
        clip=plan.clip,
        slope=steps.slope,
    )
    params = steps.packing.unpack(tree.as_one(fitted.params))
    return Trained(params, fitted.loss[0], start.epochs + plan.epochs, fitted.state)


def batches_of(
    network: AAE, inputs: Inputs, pattern: Pattern, values: Tensor, plan: Plan, key: Key
) -> RowBatches:
    """Give the batches on which `train` trains, see there."""
    draws = Draws(network.code, network.dropout, plan.input_masking, plan.leave_out_visible)
    return RowBatches(inputs, pattern, values, plan.batch_rows, draws, key)


@dataclass(frozen=True)
class Steps:
    """Batches, loss and slope as `fit` takes them: only a batch's number passes through it.

    Attributes:
        batches: of rows.
        of_cells: loss of single cells.
        packing: of the parameters, which `fit` handles packed.
        first: number of the first batch.
    """

    batches: RowBatches
    of_cells: Objective
    packing: Packing
    first: int = 0

    def __call__(self, number: int, rows: Tensor) -> Named:
        """Say which batch it is, ``(1,)``."""
        return {"number": torch.tensor([self.first + number])}

    def loss(self, params: Params, batch: Named) -> Tensor:
        """Mean loss over the cells of a batch, ``()``, for autograd."""
        named = self.packing.unpack(params)
        return dense_loss(named, self.batches(int(batch["number"])), self.of_cells)

    def slope(self, params: Params, batch: Named) -> tuple[Params, Tensor]:
        """Gradients, each ``(1, ...)``, and loss ``(1,)``, in closed form."""
        made = self.batches(int(batch["number"]))
        named = self.packing.unpack(tree.as_one(params))
        value, grads = value_and_gradients(named, made, self.of_cells)
        return tree.as_stack(self.packing.pack(grads)), value[None]


def _check(network: AAE, inputs: Inputs, pattern: Pattern, values: Tensor) -> None:
    if len(inputs) != len(pattern):
        raise ValueError(f"{len(inputs)} rows of inputs, {len(pattern)} of targets")
    if (network.n_inputs, network.n_outputs) != (inputs.n_columns, pattern.n_columns):
        raise ValueError("the network has other numbers of columns than its inputs and targets")
    if values.shape != (pattern.nnz,):
        raise ValueError(f"{pattern.nnz} cells need as many values")
    widths = {name: features.shape[1] for name, features in inputs.sides.items()}
    if widths != dict(network.sides):
        raise ValueError(f"side information {widths}, expected {dict(network.sides)}")
    if {v.dtype for v in (inputs.values, *inputs.sides.values())} != {values.dtype}:
        raise ValueError("inputs, side information and targets must have one dtype")
