"""The Assisted AutoEncoder: sizes, forward and backward pass, prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.assisted.aae.batches import Batch
from coterie.assisted.aae.cells import Cells, Inputs, Pattern
from coterie.assisted.objective import Objective
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

RATINGS = "ratings"
DECODER = "decoder"
Params = dict[str, Tensor]


@dataclass(frozen=True)
class AAE:
    """An Assisted AutoEncoder (Diao et al., Table 5); each organisation may choose its own sizes.

    An encoder of the ratings and one of each kind of side information, all
    ``wide -> tanh -> code -> tanh``, whose codes are summed; dropout; a decoder
    ``hidden -> tanh -> wide`` without output activation. The wide matrices have a row a column of
    the ratings, the others are as those of `torch.nn.Linear`:

    ==============================  =======================
    ``{encoder}.wide.weight``       ``(n_inputs, hidden)``, of a side encoder ``(d, hidden)``
    ``{encoder}.wide.bias``         ``(hidden,)``
    ``{encoder}.code.weight, bias`` ``(code, hidden)``, ``(code,)``
    ``decoder.hidden.weight, bias`` ``(hidden, code)``, ``(hidden,)``
    ``decoder.wide.weight, bias``   ``(n_outputs, hidden)``, ``(n_outputs,)``
    ==============================  =======================

    Attributes:
        n_inputs: columns of the organisation's own ratings.
        n_outputs: columns of the targets; those of all organisations, or ``n_inputs``.
        sides: features d of each kind of side information, by name.
        hidden: width of the hidden layers.
        code: width of the code.
        dropout: share of the code that is dropped in training, in [0, 1).

    Raises:
        ValueError: a size is not positive, the dropout is out of its range, or a side's name is
            one of the network's own parts.

    Example:
        >>> network = AAE(3, 5, {"profile": 2}, hidden=4, code=2)
        >>> sorted(network.start(Key.from_seed(0)))[:2]
        ['decoder.hidden.bias', 'decoder.hidden.weight']
    """

    n_inputs: int
    n_outputs: int
    sides: Mapping[str, int] = field(default_factory=dict)
    hidden: int = 256
    code: int = 128
    dropout: float = 0.5

    def __post_init__(self) -> None:
        sizes = (self.n_inputs, self.n_outputs, self.hidden, self.code, *self.sides.values())
        if min(sizes) < 1:
            raise ValueError("all sizes of an autoencoder must be positive")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), not {self.dropout}")
        if {RATINGS, DECODER} & self.sides.keys():
            raise ValueError(f"'{RATINGS}' and '{DECODER}' are no names for side information")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter, by name."""
        hidden, code = self.hidden, self.code
        shapes: dict[str, tuple[int, ...]] = {}
        for encoder, features in {RATINGS: self.n_inputs, **self.sides}.items():
            shapes[f"{encoder}.wide.weight"] = (features, hidden)
            shapes[f"{encoder}.wide.bias"] = (hidden,)
            shapes[f"{encoder}.code.weight"] = (code, hidden)
            shapes[f"{encoder}.code.bias"] = (code,)
        shapes[f"{DECODER}.hidden.weight"] = (hidden, code)
        shapes[f"{DECODER}.hidden.bias"] = (hidden,)
        shapes[f"{DECODER}.wide.weight"] = (self.n_outputs, hidden)
        shapes[f"{DECODER}.wide.bias"] = (self.n_outputs,)
        return shapes

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def start(self, key: Key, dtype: torch.dtype = torch.float32) -> Params:
        """Draw first parameters: Xavier's uniform weights (Glorot, Bengio, 2010), zero biases."""
        return {name: _drawn(key.fold(name), shape, dtype) for name, shape in self.shapes.items()}


def _drawn(key: Key, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if len(shape) == 1:
        return torch.zeros(shape, dtype=dtype)
    bound = math.sqrt(6 / sum(shape))
    return key.uniform(*shape, dtype=dtype).mul_(2 * bound).sub_(bound)


# Forward and backward pass of one autoencoder on sparse cells, without autograd.


@dataclass(frozen=True)
class Encoded:
    """Activations of an encoder: ``hidden`` ``(B, hidden)`` and ``code`` ``(B, code)``."""

    hidden: Tensor
    code: Tensor


def encode_all(
    params: Params, inputs: Cells, ratings: Tensor, sides: Mapping[str, Tensor]
) -> dict[str, Encoded]:
    """Encode the ratings ``(n,)`` and each side information ``(B, d)``; codes are to be summed."""
    weight = params[f"{RATINGS}.wide.weight"]
    wide = {RATINGS: inputs.times(ratings, weight)}
    wide |= {name: features @ params[f"{name}.wide.weight"] for name, features in sides.items()}
    return {name: _encode(params, name, value) for name, value in wide.items()}


def _encode(params: Params, name: str, wide: Tensor) -> Encoded:
    hidden = wide.add_(params[f"{name}.wide.bias"]).tanh_()
    return Encoded(hidden, _linear(params, f"{name}.code", hidden).tanh_())


def code_of(encoded: Mapping[str, Encoded]) -> Tensor:
    """Sum the codes, ``(B, code)``."""
    first, *others = [one.code for one in encoded.values()]
    code = first
    for other in others:
        code = code + other
    return code


def decode(params: Params, code: Tensor) -> Tensor:
    """Compute the decoder's hidden layer, ``(B, hidden)``, from codes ``(B, code)``."""
    return _linear(params, f"{DECODER}.hidden", code).tanh_()


def outputs(params: Params, hidden: Tensor, cells: Cells) -> Tensor:
    """Compute outputs ``(n,)`` at some cells from the decoder's hidden layer ``(B, hidden)``."""
    bias = params[f"{DECODER}.wide.bias"].index_select(0, cells.column)
    return bias.add_(cells.dots(hidden, params[f"{DECODER}.wide.weight"]))


def value_and_gradients(params: Params, batch: Batch, loss: Objective) -> tuple[Tensor, Params]:
    """Compute the mean loss over the cells of a batch, ``()``, and its gradients.

    Args:
        params: of one network.
        batch: what it sees; a batch without a cell that counts has loss 0 and gradient 0.
        loss: of single cells.
    """
    encoded = encode_all(params, batch.inputs, batch.ratings, batch.sides)
    code = code_of(encoded)
    code = code if batch.keep is None else code * batch.keep
    hidden = decode(params, code)
    output = outputs(params, hidden, batch.targets)
    value, residual = _residual(output, batch, loss)
    grads, back = _backward_decoder(params, batch, code, hidden, residual)
    back = back if batch.keep is None else back.mul_(batch.keep)
    for name, one in encoded.items():
        grads |= _backward_encoder(params, batch, name, one, back)
    return value, grads


def _residual(output: Tensor, batch: Batch, loss: Objective) -> tuple[Tensor, Tensor]:
    """Mean loss, and its derivative in each output."""
    value, slope = loss.loss(batch.values, output), loss.residual(batch.values, output).neg()
    if batch.counted is None:
        count = max(len(output), 1)
        return value.sum() / count, slope / count
    total = batch.counted.sum().clamp(min=1.0)
    return value.dot(batch.counted) / total, slope * (batch.counted / total)


def _backward_decoder(
    params: Params, batch: Batch, code: Tensor, hidden: Tensor, residual: Tensor
) -> tuple[Params, Tensor]:
    """Gradients of the decoder, and that of the code, ``(B, code)``."""
    cells, wide = batch.targets, params[f"{DECODER}.wide.weight"]
    back = _through_tanh(cells.times(residual, wide), hidden)
    grads = {
        f"{DECODER}.hidden.weight": back.T @ code,
        f"{DECODER}.hidden.bias": back.sum(0),
        f"{DECODER}.wide.weight": cells.transposed_times(residual, hidden),
        f"{DECODER}.wide.bias": cells.column_sums(residual),
    }
    return grads, back @ params[f"{DECODER}.hidden.weight"]


def _backward_encoder(
    params: Params, batch: Batch, name: str, one: Encoded, back: Tensor
) -> Params:
    """Gradients of an encoder from that of its code, ``(B, code)``."""
    code = _through_tanh(back, one.code)
    hidden = _through_tanh(code @ params[f"{name}.code.weight"], one.hidden)
    if name == RATINGS:
        wide = batch.inputs.transposed_times(batch.ratings, hidden)
    else:
        wide = batch.sides[name].T @ hidden
    return {
        f"{name}.wide.weight": wide,
        f"{name}.wide.bias": hidden.sum(0),
        f"{name}.code.weight": code.T @ one.hidden,
        f"{name}.code.bias": code.sum(0),
    }


def _linear(params: Params, name: str, values: Tensor) -> Tensor:
    return torch.addmm(params[f"{name}.bias"], values, params[f"{name}.weight"].T)


def _through_tanh(grad: Tensor, output: Tensor) -> Tensor:
    """Gradient before a tanh from that behind it."""
    through: Tensor = torch.ops.aten.tanh_backward(grad, output)
    return through


# What a trained autoencoder gives at chosen cells.

_ROWS, _CELLS = 1024, 1 << 20
"""Most rows, and cells, at a time."""


@torch.no_grad()
def predict(network: AAE, params: Params, inputs: Inputs, cells: Ragged | Pattern) -> Tensor:
    """Compute the outputs at chosen cells, without dropout.

    Only the asked cells are computed, for some rows at a time: memory beside the answer is that of
    a million cells, or of a row.

    Args:
        network: sizes.
        params: of the network.
        inputs: of m rows.
        cells: m rows of columns in [0, n_outputs).

    Returns:
        ``(n,)`` outputs (logits, where the loss is of these), in the order of the cells.

    Raises:
        ValueError: rows or columns do not fit.

    Example:
        >>> from coterie.core.tensors.keys import Key
        >>> network = AAE(2, 3, hidden=4, code=2)
        >>> inputs = Inputs(Ragged.from_lists([[0], [1]]), torch.ones(2), 2)
        >>> params = network.start(Key.from_seed(0))
        >>> predict(network, params, inputs, Ragged.from_lists([[2, 0], [1]])).shape
        torch.Size([3])
    """
    pattern = cells if isinstance(cells, Pattern) else Pattern(cells, network.n_outputs)
    if len(pattern) != len(inputs):
        raise ValueError(f"{len(inputs)} rows of inputs, {len(pattern)} of cells")
    if pattern.n_columns != network.n_outputs:
        raise ValueError(f"cells of {pattern.n_columns} columns, the network has another number")
    found = []
    for rows in _parts(pattern):
        own = inputs.pattern.batches(rows, len(rows))
        (given,), (ratings,) = own.cells, own.take(inputs.values)
        sides = {name: features.index_select(0, rows) for name, features in inputs.sides.items()}
        hidden = decode(params, code_of(encode_all(params, given, ratings, sides)))
        (asked,) = pattern.batches(rows, len(rows)).cells
        found.append(asked.in_rows(outputs(params, hidden, asked)))
    return torch.cat(found) if found else inputs.values.new_zeros(0)


def _parts(pattern: Pattern) -> Iterator[Tensor]:
    """Cut the rows that have cells into parts that fit, each ``(B,)`` int64."""
    offsets, first = pattern.columns.offsets, 0
    while first < len(pattern):
        fitting = int(torch.searchsorted(offsets, offsets[first] + _CELLS, right=True)) - 1
        end = min(max(fitting, first + 1), first + _ROWS, len(pattern))
        rows = first + pattern.columns.lengths[first:end].nonzero().flatten()
        if rows.numel():
            yield rows
        first = end
