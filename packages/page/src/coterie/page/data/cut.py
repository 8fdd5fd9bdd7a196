"""Cutting what clients and the server hold into training, validation and test samples."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.ragged import Ragged

Samples = dict[str, Tensor]

_ROUNDING = 1e-9  # so that 0.3 of 10 is 3, whatever the float


def cut_clients(
    samples: Samples,
    partition: Ragged,
    key: Key | None,
    *,
    test_share: float = 0.3,
    valid_share: float = 0.1,
) -> SplitSamples:
    """Cut each client's samples in training and test, and validation out of the training part.

    Shares are rounded down, so the only sample of a client is a training sample.

    Args:
        samples: fields by name, each ``(n, ...)``.
        partition: sample numbers of each of C clients.
        key: of the shuffles; None keeps the order, so that the last samples are tested (for texts,
            whose neighbouring samples overlap).
        test_share: of a client's samples; PAGE's 7:3 by default.
        valid_share: of what remains.

    Raises:
        UserError: a share outside of [0, 1).

    Example:
        >>> rows = Ragged.from_lists([list(range(10)), [10], []])
        >>> parts = cut_clients({"x": torch.arange(11)}, rows, Key.from_seed(0), valid_share=0.2)
        >>> [part.lengths.tolist() for part in (parts.train, parts.valid, parts.test)]
        [[6, 1, 0], [1, 0, 0], [3, 0, 0]]
    """
    n_test = _share(partition.lengths, test_share, "test_share")
    n_valid = _share(partition.lengths - n_test, valid_share, "valid_share")
    n_train = partition.lengths - n_test - n_valid
    row, position, values = partition.rows, partition.positions, partition.values
    if key is not None:
        keys = key.fold("cut").fold(torch.arange(len(partition))).take(row)
        values = values[shuffle_rows(keys, row, position)]
    part = (position >= n_train[row]).long() + (position >= (n_train + n_valid)[row]).long()
    pieces = ((part == number).nonzero().flatten() for number in range(3))
    cut = (Ragged.from_pairs(row[at], values[at], len(partition)) for at in pieces)
    ids = torch.arange(len(partition))
    return SplitSamples(*(SampleData(ids, _at(rows.values, samples), rows.offsets) for rows in cut))


def cut_server(samples: Samples, key: Key, *, valid_share: float = 0.2) -> tuple[Samples, Samples]:
    """Cut the server's held-out samples at random in validation and test.

    Both keep the order of ``samples``, each ``(n, ...)``; the share is rounded down.

    Raises:
        UserError: a share outside of [0, 1).

    Example:
        >>> valid, test = cut_server({"y": torch.arange(10)}, Key.from_seed(0))
        >>> len(valid["y"]), sorted([*valid["y"].tolist(), *test["y"].tolist()]) == list(range(10))
        (2, True)
    """
    n = len(next(iter(samples.values())))
    n_valid = int(_share(torch.tensor([n]), valid_share, "server_valid_share"))
    order = torch.argsort(key.fold("server").bits(torch.arange(n)), stable=True)
    valid, test = order[:n_valid].sort().values, order[n_valid:].sort().values
    return _at(valid, samples), _at(test, samples)


def _share(lengths: Tensor, share: float, name: str) -> Tensor:
    if not 0 <= share < 1:
        raise UserError(f"{name} is {share:g}: choose 0 or more, below 1")
    return (lengths.double() * share + _ROUNDING).long()


def _at(index: Tensor, samples: Samples) -> Samples:
    return {name: values[index] for name, values in samples.items()}
