"""Padded uploads: the touched rows hidden among random others, the same number for every client."""

from __future__ import annotations

import torch

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged
from coterie.core.tensors.rows import TouchedRows


def pad_rows(rows: TouchedRows, size: int, key: Key) -> TouchedRows:
    """Add random untouched rows, of change 0, until every client sends ``size`` rows.

    This hides how many rows a client touched, and each touched row among the padding. It is no
    formal guarantee: a row that is not sent was certainly not touched.

    Args:
        rows: stacked changes of C clients.
        size: rows that every client sends, at most the table's n.
        key: the clients' own keys, ``(C,)``; they choose the padding.

    Raises:
        UserError: a client touched more than ``size`` rows, or the table has fewer.
    """
    n_clients, n_rows = rows.n_clients, rows.n_rows
    most = int(rows.touched().max()) if n_clients else 0
    if not most <= size <= n_rows:
        raise UserError(
            f"privacy.padded_rows is {size}, but a client changed {most} of {n_rows} rows: "
            f"choose {most} to {n_rows}, or privacy.uploads dense"
        )
    # Touched rows come first (-1), then the others in an order that the client's key draws.
    order = Key(key.state[:, None]).bits(torch.arange(n_rows)) & ((1 << 63) - 1)
    order[rows.index.rows, rows.index.values] = -1
    chosen = torch.topk(order, size, largest=False).indices.sort().values
    offsets = torch.arange(n_clients + 1) * size
    values = rows.values.new_zeros(n_clients * size, rows.width)
    place = torch.searchsorted(
        (chosen + torch.arange(n_clients)[:, None] * n_rows).flatten(),
        rows.index.rows * n_rows + rows.index.values,
    )
    values[place] = rows.values
    return TouchedRows(Ragged(chosen.flatten(), offsets), values, n_rows)
