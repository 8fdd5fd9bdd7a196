"""Make a task from its settings, and cut it into training, validation and test samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.data.samples.partitions import quantity_skew, shards
from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.data.sources.catalogue import data_folder
from coterie.core.errors import UserError, nearest
from coterie.core.registry.data_sets import data_set
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.stacked import Ragged
from coterie.page.data import cifar100, tiny_imagenet
from coterie.page.data.shakespeare import N_CLASSES, Role, read_roles
from coterie.page.data.synthetic import Law, synthetic, synthetic_fedprox
from coterie.page.data.task import Labelled, Task
from coterie.page.settings import TaskSettings
from coterie.page.tasks import TASKS

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


# Make a task from its settings.

_CLIENTS = 100
_LOCAL, _HELD = 7000, 1000
"""Samples of a role that the client takes, and the server (the paper's appendix, by its code)."""
_SERVER_VALID = 0.2


def make_task(settings: TaskSettings, key: Key, dtype: torch.dtype = torch.float32) -> Task:
    """Draw or read a task, and share it out among clients and server (section 5.1).

    Pictures are shared out in parts of equal or log-normal size with Dirichlet class ratios, or in
    shards; each part is cut 7:3, and the server holds the official test set. A role of a play is a
    client; of its samples in the order of the play the first 4900 are for training, the next 2100
    for testing, and the server holds the next 1000 of every role. Validation samples are a share of
    the training samples, and a fifth of the server's.

    Args:
        settings: the section ``data``.
        key: of all draws.
        dtype: of features that are drawn; pictures and text stay uint8.

    Raises:
        UserError: no such task, its files are missing or malformed, or it has too few samples or
            roles for that many clients.
    """
    makers: Mapping[str, Callable[[], Task]] = {
        "synthetic": lambda: _synthetic(settings, key, dtype),
        "synthetic-fedprox": lambda: _synthetic_fedprox(settings, key, dtype),
        "cifar-100": lambda: _pictures(settings, cifar100.read, key),
        "tiny-imagenet-200": lambda: _pictures(settings, tiny_imagenet.read, key),
        "shakespeare": lambda: _plays(settings, key),
    }
    if settings.name not in makers:
        raise UserError(
            f"'{settings.name}' is no task of PAGE, which takes labelled samples: "
            + nearest(settings.name, [entry.name for entry in TASKS])
        )
    return makers[settings.name]()


def _synthetic(settings: TaskSettings, key: Key, dtype: torch.dtype) -> Task:
    n_clients, law = settings.clients or _CLIENTS, Law(beta=settings.feature_skew)
    return synthetic(key, n_clients, law=law, theta=settings.quantity_skew, dtype=dtype)


def _synthetic_fedprox(settings: TaskSettings, key: Key, dtype: torch.dtype) -> Task:
    law = Law(n_features=60, n_classes=10, alpha=1.0, beta=settings.feature_skew)
    return synthetic_fedprox(key, settings.clients or 30, law=law, dtype=dtype)


def _pictures(
    settings: TaskSettings, read: Callable[..., tuple[Labelled, Labelled]], key: Key
) -> Task:
    found = read(_folder(settings))
    train, test = (_some(part, settings.samples, key) for part in found)
    y, own, n_clients = train["y"], key.fold("partition"), settings.clients or _CLIENTS
    _check_enough(len(y), n_clients, settings)
    if settings.partition == "shards":
        parts = shards(y, n_clients, own, per_client=settings.shards)
    else:
        parts = quantity_skew(y, n_clients, settings.label_skew, settings.quantity_skew, own)
    clients = cut_clients(train, parts, key, valid_share=settings.valid)
    held = cut_server(test, key, valid_share=_SERVER_VALID)
    return Task(settings.name, clients, *held, found[0].n_classes)


def _check_enough(n_samples: int, n_clients: int, settings: TaskSettings) -> None:
    least, to_lower = 1, "data.clients"
    if settings.partition == "shards":
        least, to_lower = settings.shards, "data.clients or data.shards"
    if n_samples < n_clients * least:
        raise UserError(
            f"{n_samples} training pictures cannot give {least} to each of {n_clients} clients: "
            f"lower {to_lower}, or raise data.samples if it is set"
        )


def _some(part: Labelled, most: int | None, key: Key) -> Samples:
    samples = {"x": part.x, "y": part.y}
    if most is None or most >= len(part):
        return samples
    chosen = _drawn(key.fold("samples"), len(part), most)
    return {name: values[chosen] for name, values in samples.items()}


def _drawn(key: Key, n: int, count: int) -> Tensor:
    """Draw ``count`` of n numbers, ascending."""
    return key.bits(torch.arange(n)).argsort(stable=True)[:count].sort().values


def _folder(settings: TaskSettings) -> Path:
    return data_folder(data_set(settings.name), settings.root)


def _plays(settings: TaskSettings, key: Key) -> Task:
    roles = read_roles(_folder(settings), _LOCAL + _HELD)
    n_clients = settings.clients or _CLIENTS
    if n_clients > len(roles):
        raise UserError(
            f"{len(roles)} roles have {_LOCAL + _HELD} samples, fewer than the {n_clients} "
            f"clients: set data.clients to {len(roles)} or less"
        )
    drawn = _drawn(key.fold("roles"), len(roles), n_clients)
    chosen = [roles[number] for number in drawn.tolist()]
    local, server = _lengths(settings.samples, n_clients)
    # Samples stay in the order of the play: neighbours share most of their characters, and so no
    # character that is to be predicted in a test occurs in training.
    clients = _in_order(chosen, slice(local), test=0.3, valid=settings.valid)
    held = _in_order(chosen, slice(_LOCAL, _LOCAL + server), test=1 - _SERVER_VALID, valid=0.0)
    return Task(settings.name, clients, held.train.samples, held.test.samples, N_CLASSES)


def _lengths(most: int | None, n_clients: int) -> tuple[int, int]:
    """Samples of a role that its client takes, and the server."""
    if most is None:
        return _LOCAL, _HELD
    each = most // n_clients
    if not each:
        raise UserError(f"'data.samples' is {most}: give each of the {n_clients} clients one")
    return min(_LOCAL, each), min(_HELD, each)


def _in_order(roles: Sequence[Role], part: slice, test: float, valid: float) -> SplitSamples:
    samples = {
        "x": torch.cat([role.x[part] for role in roles]),
        "y": torch.cat([role.y[part] for role in roles]).long(),
    }
    lengths = torch.tensor([len(role.y[part]) for role in roles])
    rows = Ragged.from_lengths(torch.arange(len(samples["y"])), lengths)
    return cut_clients(samples, rows, None, test_share=test, valid_share=valid)
