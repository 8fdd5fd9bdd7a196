"""The same loss by plain dense operations, for autograd: what is compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.assisted.aae.batches import Batch
from coterie.assisted.aae.cells import Cells
from coterie.assisted.aae.network import DECODER, RATINGS, Params
from coterie.assisted.objective import Objective


def dense_loss(params: Params, batch: Batch, loss: Objective) -> Tensor:
    """Compute the mean loss over the cells of a batch, ``()``, with all ``(B, n_outputs)`` outputs.

    As `coterie.assisted.aae.passes.value_and_gradients`, and differentiable.
    """
    ratings = _dense(batch.inputs, batch.ratings)
    sides = {RATINGS: ratings, **batch.sides}
    codes = [_encode(params, name, features) for name, features in sides.items()]
    code = torch.stack(codes).sum(0)
    code = code if batch.keep is None else code * batch.keep
    hidden = torch.tanh(_linear(params, f"{DECODER}.hidden", code))
    output = _linear(params, f"{DECODER}.wide", hidden)
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


def _dense(cells: Cells, values: Tensor) -> Tensor:
    table = values.new_zeros(cells.n_rows, cells.n_columns)
    table[cells.row.long(), cells.column.long()] = values
    return table
