"""Forward and backward pass of one autoencoder on sparse cells, without autograd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.assisted.aae.batches import Batch
from coterie.assisted.aae.cells import Cells
from coterie.assisted.aae.network import DECODER, RATINGS, Params
from coterie.assisted.objective import Objective


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
