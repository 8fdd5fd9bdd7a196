"""Parts of the samples of clients: a random share of each client's, or all in one place."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.ragged import Ragged


def divide(data: SampleData, counts: Tensor, key: Key) -> tuple[SampleData, SampleData]:
    """Divide each client's samples at random into two parts.

    Args:
        data: of C clients.
        counts: ``(C,)`` int64, numbers of samples of the first parts.
        key: the clients' keys, ``(C,)``.

    Example:
        >>> data = SampleData.from_clients([{"x": torch.arange(5)}, {"x": torch.arange(2)}])
        >>> first, rest = divide(data, torch.tensor([2, 1]), Key.from_seed(0).fold(data.ids))
        >>> first.lengths.tolist(), rest.lengths.tolist()
        ([2, 1], [3, 1])
    """
    owners = Ragged(torch.empty(int(data.offsets[-1])), data.offsets)
    row, position = owners.rows, owners.positions
    order = shuffle_rows(key.take(row), row, position)
    is_first = position < counts[row]
    return (
        _part(data, order[is_first], counts),
        _part(data, order[~is_first], data.lengths - counts),
    )


def share_counts(lengths: Tensor, share: float) -> Tensor:
    """Numbers of samples in a share, ``(C,)`` int64: rounded, at least 1 where there are any."""
    counts = (share * lengths.double()).round().long()
    return counts.clamp(min=1).minimum(lengths)


def pooled(data: SampleData) -> SampleData:
    """Put the samples of all clients together, as those of one client with the id 0."""
    everything = torch.tensor([0, int(data.offsets[-1])])
    return SampleData(torch.zeros(1, dtype=torch.int64), data.samples, everything)


def _part(data: SampleData, index: Tensor, lengths: Tensor) -> SampleData:
    samples = {name: values[index] for name, values in data.samples.items()}
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return SampleData(data.ids, samples, offsets)
