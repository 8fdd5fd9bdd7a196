"""Boolean masks as positions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def where_true(mask: Tensor) -> Tensor:
    """Positions at which a mask, ``(n,)`` bool, is true: ``(k,)`` int64, ascending.

    The same as ``mask.nonzero().squeeze(1)``, at about half the cost for long masks.

    Example:
        >>> where_true(torch.tensor([False, True, True])).tolist()
        [1, 2]
    """
    if mask.device.type != "cpu":
        return mask.nonzero().squeeze(1)
    return torch.from_numpy(np.flatnonzero(mask.numpy()))
