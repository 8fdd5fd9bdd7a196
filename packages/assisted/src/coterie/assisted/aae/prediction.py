"""What a trained autoencoder gives at chosen cells."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from coterie.assisted.aae.inputs import Inputs
from coterie.assisted.aae.network import AAE, Params
from coterie.assisted.aae.passes import code_of, decode, encode_all, outputs
from coterie.assisted.aae.pattern import Pattern
from coterie.core.tensors.ragged import Ragged

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
