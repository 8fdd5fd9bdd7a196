"""Sharing out the samples of one data set among clients.

Every scheme returns a `Ragged` with a row of ascending sample numbers a client; no sample is in
two rows. Every scheme ends: a request that cannot be met is a `UserError`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

_SIGMA = 1e6  # beyond which sizes would overflow; one client has everything long before


def equal_sizes(n_samples: int, n_clients: int) -> Tensor:
    """Sizes that differ by 1 at most and sum to n, ``(C,)`` int64.

    Raises:
        UserError: fewer samples than clients, or no clients.

    Example:
        >>> equal_sizes(10, 3).tolist()
        [3, 3, 4]
    """
    check_enough(n_samples, n_clients, 1)
    return torch.arange(n_clients + 1).mul(n_samples).div(n_clients, rounding_mode="floor").diff()


def log_normal_sizes(
    n_samples: int, n_clients: int, sigma: float, key: Key, *, min_size: int = 1
) -> Tensor:
    """Draw log-normal sizes that sum to the number of samples.

    Sizes that fall below ``min_size`` are raised to it, at the cost of the others.

    Args:
        n_samples: number of samples n.
        n_clients: number of clients C.
        sigma: standard deviation of the logarithm of a size; 0 = equal parts.
        key: of the draw.
        min_size: least size.

    Returns:
        ``(C,)`` int64 with sum n.

    Raises:
        UserError: n < C ``min_size``, or sigma is negative or beyond any use.
    """
    if not 0 <= sigma <= _SIGMA:
        raise UserError(f"sigma is {sigma:g}: choose a number from 0 to {_SIGMA:g}")
    check_enough(n_samples, n_clients, min_size, "min_size")
    clients = key.fold("sizes").fold(torch.arange(n_clients))
    logs = (sigma * clients.normal(dtype=torch.float64)).numpy()
    return _apportion(np.exp(logs - logs.max()), n_samples, min_size)


def check_enough(n_samples: int, n_clients: int, least: int, setting: str = "") -> None:
    """Refuse more clients than can have ``least`` samples each; ``setting`` is what that is called.

    Raises:
        UserError: with the remedy.
    """
    if n_clients < 1:
        raise UserError(f"n_clients is {n_clients}: choose 1 or more")
    if least < 0:
        raise UserError(f"{setting} is {least}: choose 0 or more")
    if n_samples < max(n_clients * least, 1):
        remedy = f"lower n_clients or {setting}" if setting else "lower n_clients"
        raise UserError(
            f"{n_samples} samples cannot give {least} to each of {n_clients} clients: {remedy}"
        )


def _apportion(weights: npt.NDArray[np.float64], total: int, least: int) -> Tensor:
    """Whole numbers near ``weights`` that sum to ``total``, each at least ``least``."""
    raised = np.zeros(len(weights), dtype=bool)
    beyond = weights / weights.sum() * total - least
    while (low := ~raised & (beyond < 0)).any():  # each pass raises one more at least
        raised |= low
        free = total - least * raised.sum()
        share = weights / max(weights[~raised].sum(), np.finfo(float).tiny)
        beyond = np.where(raised, 0.0, share * free - least)
    ends = np.floor(beyond.cumsum() + 0.5).astype(np.int64)
    return torch.from_numpy(np.diff(ends, prepend=0) + least)


# Tables of counts with given sums of rows and columns, as near as may be to given ratios.

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_PASSES = 1000
_CLOSE = 1e-3  # of a sample, in every row
_TAIL = -30.0  # logarithm of a ratio below which it matters only when margins ask for it
_DEEPEST = -200.0  # where the tail ends, so that every cell keeps a ratio that can be raised


def counts_with_margins(log_ratios: Floats, rows: Counts, columns: Counts) -> Counts:
    """Share out ``columns`` among rows of given sizes, each near its own ratios.

    The ratios times the sizes are fitted to both margins (iterative proportional fitting, Deming
    and Stephan, 1940) and rounded so that the margins hold exactly. Ratios that contradict the
    margins are bent as far as these ask, alike for all rows: nobody is served first.

    Args:
        log_ratios: ``(R, K)``, finite logarithms; the ratios of a row sum to 1.
        rows: ``(R,)``, with the same total as ``columns``.
        columns: ``(K,)``.

    Returns:
        ``(R, K)`` with exactly these sums.

    Raises:
        ValueError: the totals differ, or a number is negative.

    Example:
        >>> ratios = np.array([[0.99, 0.01], [0.5, 0.5]])
        >>> counts_with_margins(np.log(ratios), np.array([4, 4]), np.array([6, 2])).tolist()
        [[4, 0], [2, 2]]
    """
    if rows.sum() != columns.sum() or min(rows.min(), columns.min(), 0) < 0:
        raise ValueError("rows and columns must be 0 or more, with equal totals")
    table = _fit(np.exp(_shorten_tail(log_ratios)), rows, columns)
    return _mend(_round_columns(table), table, rows)


def _shorten_tail(logs: Floats) -> Floats:
    """Keep the order of ratios too small for a float: what is lacking comes from the next best."""
    factor = min(1.0, (_DEEPEST - _TAIL) / min(float(logs.min()) - _TAIL, -1.0))
    return np.where(logs < _TAIL, _TAIL + (logs - _TAIL) * factor, logs)


def _fit(ratios: Floats, rows: Counts, columns: Counts) -> Floats:
    table: Floats = ratios * rows[:, None]
    for _ in range(_PASSES):
        table *= _quotient(columns, table.sum(0))
        sums = table.sum(1)
        if np.abs(sums - rows).max() < _CLOSE:
            break
        table *= _quotient(rows, sums)[:, None]
    return table * _quotient(columns, table.sum(0))


def _quotient(wanted: Counts, had: Floats) -> Floats:
    return np.divide(wanted, had, out=np.zeros_like(had), where=had > 0)


def _round_columns(table: Floats) -> Counts:
    """Keep the sums of the columns; each starts at an offset of its own, so that errors differ."""
    offset = (np.arange(table.shape[1]) + 0.5) / table.shape[1]
    steps = np.floor(table.cumsum(0) + offset).astype(np.int64)
    return np.diff(steps, axis=0, prepend=0)


def _mend(counts: Counts, table: Floats, rows: Counts) -> Counts:
    """Move single samples within a column, from rows that have too many to rows that lack some."""
    excess = counts.sum(1) - rows
    for _ in range(int(np.abs(excess).sum()) // 2):
        giver, taker = int(excess.argmax()), int(excess.argmin())
        over = (counts[giver] - table[giver]) - (counts[taker] - table[taker])
        column = int(np.where(counts[giver] > 0, over, -np.inf).argmax())
        counts[[giver, taker], column] += [-1, 1]
        excess[[giver, taker]] += [-1, 1]
    return counts


_DRAWS = 200  # of a division by class, until each client has enough samples
_ALPHA = (1e-6, 1e12)  # what the Dirichlet generator can draw; beyond, nothing changes


def uniform(n_samples: int, n_clients: int, key: Key) -> Ragged:
    """Share out n samples at random among C clients in equal parts (sizes differ by 1 at most).

    Raises:
        UserError: fewer samples than clients.
    """
    labels = torch.zeros(n_samples, dtype=torch.int64)
    counts = equal_sizes(n_samples, n_clients).numpy()[:, None]
    return _deal(labels, counts, n_clients, key)


def dirichlet(
    labels: Tensor,
    n_clients: int,
    alpha: float,
    key: Key,
    *,
    min_size: int = 10,
    sizes: Tensor | None = None,
) -> Ragged:
    """Share out samples with label skew: the smaller ``alpha``, the fewer classes a client has.

    Without ``sizes``, each class is divided among the clients in ratios from Dir(alpha), sizes
    follow, and all samples are used (Yurochkin et al., ICML 2019). A client that holds its n/C
    samples gets none of the classes still to be divided.

    With ``sizes``, client c holds exactly ``sizes[c]`` samples, of classes in ratios from
    Dir(alpha): the symmetric distribution where classes are equally frequent, else
    Dir(alpha K prior). The ratios are bent as little as the number of samples of each class asks,
    see `counts_with_margins`; all samples are used if ``sizes`` sum to n.

    Args:
        labels: ``(n,)`` int64 classes.
        n_clients: number of clients C.
        alpha: concentration.
        key: of the draws.
        min_size: samples that each client must have, where no ``sizes`` are given.
        sizes: ``(C,)`` int64.

    Raises:
        UserError: too few samples, an alpha out of range, sizes that do not fit, or no division in
            200 draws that gives every client ``min_size`` samples.

    Example:
        >>> labels = torch.arange(1000) % 10
        >>> equal = torch.full((20,), 50)
        >>> rows = dirichlet(labels, 20, 0.1, Key.from_seed(0), sizes=equal)
        >>> rows.lengths.unique().tolist(), len(labels[rows.tolists()[0]].unique()) < 9
        ([50], True)
    """
    if not _ALPHA[0] <= alpha <= _ALPHA[1]:
        raise UserError(f"alpha is {alpha:g}: choose a number from {_ALPHA[0]:g} to {_ALPHA[1]:g}")
    inverse = torch.unique(labels, return_inverse=True)[1]
    per_class = torch.bincount(inverse).numpy()
    check_enough(labels.numel(), n_clients, min_size if sizes is None else 0, "min_size")
    rng = np.random.default_rng(key.fold("ratios").seed())
    if sizes is None:
        counts = _divide_classes(per_class, n_clients, alpha, min_size, rng)
    else:
        counts = _fill_clients(per_class, _checked(sizes, n_clients, labels.numel()), alpha, rng)
    return _deal(inverse, counts, n_clients, key)


def quantity_skew(
    labels: Tensor, n_clients: int, alpha: float, sigma: float, key: Key, *, min_size: int = 1
) -> Ragged:
    """Share out all samples with log-normal sizes and, as in `dirichlet`, label skew.

    Arguments as of `dirichlet`; ``sigma`` is the standard deviation of the logarithm of a size, 0
    for equal parts. Class ratios are the same for every ``sigma``.

    Raises:
        UserError: too few samples, or a setting out of range.

    Example:
        >>> rows = quantity_skew(torch.arange(90) % 3, 4, 0.3, 0.0, Key.from_seed(0))
        >>> sorted(rows.lengths.tolist())
        [22, 22, 23, 23]
    """
    sizes = log_normal_sizes(labels.numel(), n_clients, sigma, key, min_size=min_size)
    return dirichlet(labels, n_clients, alpha, key, sizes=sizes)


def shards(labels: Tensor, n_clients: int, key: Key, *, per_client: int = 2) -> Ragged:
    """Sort samples by class, cut them into shards, deal each client as many (McMahan et al., 2017).

    All samples are used; sizes of shards differ by 1 at most. A client has samples of about
    ``per_client`` classes.

    Args:
        labels: ``(n,)`` int64 classes.
        n_clients: number of clients C.
        key: of the draws.
        per_client: shards a client.

    Raises:
        UserError: fewer samples than shards.

    Example:
        >>> labels = torch.arange(100) % 10
        >>> rows = shards(labels, 10, Key.from_seed(0), per_client=1)
        >>> [len(labels[row].unique()) for row in rows.tolists()]
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    if per_client < 1:
        raise UserError(f"per_client is {per_client}: choose 1 shard a client or more")
    n_shards = n_clients * per_client
    check_enough(labels.numel(), n_clients, per_client, "per_client")
    lengths = equal_sizes(labels.numel(), n_shards)
    dealt = torch.argsort(key.fold("shards").bits(torch.arange(n_shards)), stable=True)
    client = torch.empty_like(dealt)
    client[dealt] = torch.arange(n_shards) // per_client
    return _rows(_by_class(labels, key), client.repeat_interleave(lengths), n_clients)


def by_group(
    groups: Tensor, key: Key, *, n_clients: int | None = None, min_size: int = 1
) -> Ragged:
    """Make a client of each natural group (a user, a writer, a role): a row each, ascending.

    Args:
        groups: ``(n,)`` int64, the group of each sample.
        key: of the choice of groups.
        n_clients: number of groups drawn; None = all that are large enough.
        min_size: groups with fewer samples are left out, with their samples.

    Raises:
        UserError: fewer groups of that size than clients, or none.
    """
    if n_clients is not None and n_clients < 1:
        raise UserError(f"n_clients is {n_clients}: choose 1 or more, or none for all groups")
    names, inverse, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    large = torch.nonzero(counts >= max(min_size, 1)).flatten()
    wanted = large.numel() if n_clients is None else n_clients
    if wanted > large.numel() or not wanted:
        raise UserError(
            f"{large.numel()} of {names.numel()} groups have {min_size} samples or more, but"
            f" {max(wanted, 1)} clients are asked for: lower n_clients or min_size"
        )
    draw = torch.argsort(key.fold("groups").bits(large), stable=True)[:wanted]
    chosen = large[draw].sort().values
    client = torch.full((names.numel(),), -1)
    client[chosen] = torch.arange(wanted)
    return _rows(torch.arange(groups.numel()), client[inverse], wanted)


def _divide_classes(
    per_class: Counts, n_clients: int, alpha: float, min_size: int, rng: np.random.Generator
) -> Counts:
    """Numbers of samples ``(C, K)``: each class cut by ratios drawn for it."""
    fair = per_class.sum() / n_clients
    for _ in range(_DRAWS):
        counts = np.zeros((n_clients, len(per_class)), dtype=np.int64)
        held = np.zeros(n_clients, dtype=np.int64)
        ratios = rng.dirichlet(np.full(n_clients, alpha), size=len(per_class))
        for column, size in enumerate(per_class):
            ratio = ratios[column] * (held < fair)
            if not ratio.sum() > 0:
                ratio = ratios[column]
            cuts = np.floor(ratio.cumsum() / ratio.sum() * size).astype(np.int64)
            cuts[-1] = size
            counts[:, column] = np.diff(cuts, prepend=0)
            held += counts[:, column]
        if held.min() >= min_size:
            return counts
    raise UserError(
        f"no division with alpha {alpha:g} in {_DRAWS} draws gives each of {n_clients} clients"
        f" min_size {min_size} samples: raise alpha, lower min_size or n_clients, or give sizes"
    )


def _fill_clients(
    per_class: Counts, sizes: Counts, alpha: float, rng: np.random.Generator
) -> Counts:
    """Numbers of samples ``(C + 1, K)``, of which the last row is nobody's."""
    prior = per_class / per_class.sum()
    logs = np.vstack([_log_dirichlet(alpha * len(prior) * prior, len(sizes), rng), np.log(prior)])
    rest = per_class.sum() - sizes.sum()
    return counts_with_margins(logs, np.append(sizes, rest), per_class)


def _log_dirichlet(alpha: Floats, size: int, rng: np.random.Generator) -> Floats:
    """Logarithms of draws from Dir(alpha), ``(size, K)``, which for a small alpha underflow."""
    shape = (size, len(alpha))
    boost = np.log1p(-rng.random(shape)) / alpha  # Gamma(a) = Gamma(a + 1) U^(1/a)
    logs = np.log(rng.standard_gamma(alpha + 1.0, shape)) + boost
    return logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)


def _checked(sizes: Tensor, n_clients: int, n_samples: int) -> Counts:
    if sizes.shape != (n_clients,):
        raise UserError(f"{sizes.numel()} sizes for {n_clients} clients: give one size a client")
    if int(sizes.min()) < 0 or int(sizes.sum()) > n_samples:
        raise UserError(
            f"sizes from {int(sizes.min())} on that sum to {int(sizes.sum())} cannot be cut from"
            f" {n_samples} samples: choose sizes from 0 on that sum to no more"
        )
    return sizes.to(torch.int64).numpy()


def _deal(labels: Tensor, counts: Counts, n_clients: int, key: Key) -> Ragged:
    """Deal out random samples of each class; a row of ``counts`` beyond the clients is nobody's."""
    client = np.tile(np.arange(len(counts)), counts.shape[1])
    owner = torch.from_numpy(client.repeat(counts.T.ravel()))
    return _rows(_by_class(labels, key), owner, n_clients)


def _by_class(labels: Tensor, key: Key) -> Tensor:
    """Sample numbers in the order of their classes, at random within a class, ``(n,)``."""
    shuffled = torch.argsort(key.fold("samples").bits(torch.arange(labels.numel())), stable=True)
    return shuffled[torch.argsort(labels[shuffled], stable=True)]


def _rows(samples: Tensor, client: Tensor, n_clients: int) -> Ragged:
    """Rows of ascending sample numbers; samples of no client in [0, C) are left out."""
    owner = torch.empty_like(samples)
    owner[samples] = client
    used = torch.nonzero((owner >= 0) & (owner < n_clients)).flatten()
    return Ragged.from_pairs(owner[used], used, n_clients)
