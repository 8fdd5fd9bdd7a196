"""How many samples each client gets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key

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
