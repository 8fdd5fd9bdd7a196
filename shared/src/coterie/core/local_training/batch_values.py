"""Batches of a chunk of clients, and the value of a function on them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from coterie.core.errors import Unstackable
from coterie.core.local_training.losses import Batch, Loss
from coterie.core.local_training.row_optimizer import Params
from coterie.core.local_training.stacking import concatenate, say_unstackable, stacked


class Batches(Protocol):
    """Batches of a chunk of clients, made when they are needed.

    A batch is a dict of tensors with two leading axes ``(K, B, ...)``: K clients, B samples. Where
    clients have unequal numbers of samples, the shorter ones are padded (with finite values) and
    ``batch[MASK]``, ``(K, B)`` bool, says which samples count; where all are equal there is no
    mask. `masked` turns a loss that knows no mask into one that obeys it.
    """

    def __call__(self, number: int, rows: Tensor) -> Batch:
        """Batch ``number`` (from 0) of the clients at the positions ``rows``, ``(K,)`` int64."""
        ...


def of_clients(
    function: Loss, params: Params, batches: Batches, rows: Tensor, number: int = 0
) -> Tensor:
    """Values ``(K,)`` of a function of the clients ``rows`` on one of their batches.

    Args:
        function: of one client's parameters and batch, ``-> ()``.
        params: each ``(C, ...)``, or ``(1, ...)`` where all clients have the same.
        batches: gives the stacked batches.
        rows: ``(K,)`` int64 positions, K at least 1.
        number: of the batch, from 0.
    """

    def run(rows: Tensor) -> Tensor:
        mine = {
            name: value.expand(len(rows), *value.shape[1:])
            if len(value) == 1
            else value.index_select(0, rows)
            for name, value in params.items()
        }
        value: Tensor = stacked(function)(mine, batches(number, rows))
        return value

    try:
        return run(rows)
    except Unstackable as error:
        say_unstackable(error, len(rows))
        return concatenate([run(row) for row in rows.split(1)])
