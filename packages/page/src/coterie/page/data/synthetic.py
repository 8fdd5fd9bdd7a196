"""Synthetic classification tasks, in which only the law of a client's features need differ.

A client draws ``x ~ N(v_i, diag(j^-1.2))`` with ``v_ij ~ N(B_i, 1)`` and ``B_i ~ N(0, beta)``, and
labels it ``y = argmax(W x + b)`` (Li et al., Federated Optimization in Heterogeneous Networks,
MLSys 2020, section 5.1). As in the authors' generator, alpha and beta are standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.page.data.task import Task

_PIECE = 8192  # samples labelled at a time by rules of their own; bounds the copies of W_i
_MOST = 1e6  # samples of one client, beyond which a request is taken for a mistake


SIZES = {"train": 210, "valid": 45, "test": 90, "server_valid": 20, "server_test": 75}
"""Samples that each client's distribution gives to each set: PAGE's (section 5.1), and validation
in addition to the paper's 375."""


@dataclass(frozen=True)
class Law:
    """How samples are drawn."""

    n_features: int = 30
    """d"""
    n_classes: int = 30
    alpha: float | None = None
    """None = all clients share one labelling rule ``W, b ~ N(0, 1)``; a number = each has a rule of
    its own, with entries from N(u_i, 1) and u_i ~ N(0, alpha). As u_i raises all scores of a sample
    alike, its value changes no label."""
    beta: float = 1.0
    """standard deviation of ``B_i``"""


def synthetic(
    key: Key,
    n_clients: int = 100,
    *,
    law: Law = Law(),
    theta: float = 0.0,
    sizes: Mapping[str, int] = SIZES,
    dtype: torch.dtype = torch.float32,
) -> Task:
    """Draw PAGE's Synthetic task: one labelling rule for all, features that differ by client.

    What client i holds depends on ``key`` and i alone, so more clients leave it unchanged.

    Args:
        key: of the task.
        n_clients: number of clients N.
        law: of features and labels.
        theta: standard deviation of the logarithm of a client's size; 0 = equal sizes.
        sizes: of the sets; medians where ``theta`` is above 0.
        dtype: of ``x``.

    Returns:
        ``x`` of ``(n, d)`` and ``y`` of ``(n,)`` int64; server samples are ordered by client.

    Raises:
        UserError: no clients, or a negative number among the settings.

    Example:
        >>> task = synthetic(Key.from_seed(0), 2)
        >>> task.clients.lengths.tolist(), task.server_test["x"].shape
        ([210, 210], torch.Size([150, 30]))
    """
    _check(n_clients, law, {"theta": theta, **sizes})
    factor = _log_normal(_client_keys(key, n_clients), 0.0, theta)
    largest = max(sizes.values())
    if not bool((factor * largest < _MOST).all()):
        raise UserError(
            f"synthetic data: theta (data.quantity_skew) {theta:g} for sizes of {largest} gives a "
            f"client over {_MOST:,.0f} samples of a kind: lower it"
        )
    lengths = {part: _scale(factor, size) for part, size in sizes.items()}
    return _draw("synthetic", key, law, lengths, dtype)


def synthetic_fedprox(
    key: Key,
    n_clients: int = 30,
    *,
    law: Law = Law(n_features=60, n_classes=10, alpha=1.0, beta=1.0),
    dtype: torch.dtype = torch.float32,
) -> Task:
    """Draw FedProx's Synthetic(alpha, beta): labelling rules of the clients' own, unequal sizes.

    A client holds 50 + ⌊LogNormal(4, 2)⌋ samples, cut 9:1 into training and test as in the authors'
    generator. Validation (a tenth) and the server's two sets (a twentieth and a tenth), which that
    generator lacks, are drawn in addition.

    Args:
        key: of the task.
        n_clients: number of clients N.
        law: of features and labels.
        dtype: of ``x``.

    Raises:
        UserError: no clients, or a negative number among the settings.

    Example:
        >>> task = synthetic_fedprox(Key.from_seed(0), 3)
        >>> task.clients.train.samples["x"].shape[1], int(task.clients.lengths.min()) >= 45
        (60, True)
    """
    _check(n_clients, law, {})
    held = _log_normal(_client_keys(key, n_clients), 4.0, 2.0).long() + 50
    train = (held * 9).div(10, rounding_mode="floor")
    test = held - train
    half = (test + 1).div(2, rounding_mode="floor")
    lengths = {"train": train, "valid": test, "test": test}
    lengths |= {"server_valid": half, "server_test": test}
    return _draw("synthetic-fedprox", key, law, lengths, dtype)


@dataclass(frozen=True)
class _World:
    """Means of features ``(C, d)``, rules ``(R, d, K)`` and ``(R, 1, K)``; R is 1 (shared) or C."""

    mean: Tensor
    weight: Tensor
    bias: Tensor


def _draw(name: str, key: Key, law: Law, lengths: dict[str, Tensor], dtype: torch.dtype) -> Task:
    keys = _client_keys(key, lengths["train"].numel())
    world = _world(key, keys, law)
    part = {which: _part(keys.fold(which), world, n, dtype) for which, n in lengths.items()}
    clients = SplitSamples(part["train"], part["valid"], part["test"])
    servers = part["server_valid"].samples, part["server_test"].samples
    return Task(name, clients, *servers, law.n_classes)


def _client_keys(key: Key, n_clients: int) -> Key:
    return key.fold("client").fold(torch.arange(n_clients))


def _world(key: Key, keys: Key, law: Law) -> _World:
    d, k, double = law.n_features, law.n_classes, torch.float64
    centre = law.beta * keys.fold("centre").normal(1, dtype=double)  # B_i
    mean = centre + keys.fold("mean").normal(d, dtype=double)
    if law.alpha is None:
        weight = key.fold("weight").normal(d, k, dtype=double)
        return _World(mean, weight[None], key.fold("bias").normal(1, k, dtype=double)[None])
    shift = law.alpha * keys.fold("shift").normal(1, 1, dtype=double)
    weight = shift + keys.fold("weight").normal(d, k, dtype=double)
    return _World(mean, weight, shift + keys.fold("bias").normal(1, k, dtype=double))


def _part(keys: Key, world: _World, lengths: Tensor, dtype: torch.dtype) -> SampleData:
    owners = Ragged.from_lengths(torch.empty(int(lengths.sum())), lengths)
    of_samples = keys.take(owners.rows).fold(owners.positions)
    n_features = world.mean.shape[1]
    spread = torch.arange(1, n_features + 1, dtype=torch.float64) ** -0.6  # covariance j^-1.2
    x = of_samples.normal(n_features, dtype=torch.float64) * spread + world.mean[owners.rows]
    samples = {"x": x.to(dtype), "y": _labels(world, x, owners.rows)}
    return SampleData(torch.arange(lengths.numel()), samples, owners.offsets)


def _labels(world: _World, x: Tensor, rows: Tensor) -> Tensor:
    if len(world.weight) == 1:
        return (x @ world.weight[0] + world.bias[0]).argmax(1)
    pieces = zip(x.split(_PIECE), rows.split(_PIECE), strict=True)
    scores = [torch.baddbmm(world.bias[r], part[:, None], world.weight[r]) for part, r in pieces]
    return torch.cat(scores).squeeze(1).argmax(1)


def _log_normal(keys: Key, mean: float, sd: float) -> Tensor:
    return (mean + sd * keys.fold("size").normal(dtype=torch.float64)).exp()


def _scale(factor: Tensor, size: int) -> Tensor:
    """Sizes of the clients, at least 1 where any are wanted, ``(C,)`` int64."""
    return (factor * size).round().long().clamp(min=min(size, 1))


def _check(n_clients: int, law: Law, others: Mapping[str, float]) -> None:
    counts = {"n_clients": n_clients, "n_features": law.n_features, "n_classes": law.n_classes}
    spreads = {"beta": law.beta, "alpha": law.alpha or 0.0, **others}
    for least, settings in ((1, counts), (0, spreads)):
        for name, value in settings.items():
            if not least <= value < float("inf"):
                raise UserError(
                    f"synthetic data: {name} is {value}; set it to a finite number from {least} on"
                )
