"""All data of a stream in one place, and how the reference there is trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.methods.settings.ranking import MFSettings
from coterie.core.tensors.ragged import Ragged

CENTRAL = MFSettings(l2=3e-3, epochs=60, patience=5)
"""Of the centralised matrix factorisation, chosen on validation of ML-100K for all data sets."""


def joined(blocks: Sequence[UserRows], n_users: int) -> tuple[Tensor, Ragged]:
    """Training items of all users over several blocks, each item once.

    Args:
        blocks: what users had in each.
        n_users: number of users.

    Returns:
        The users ``(n_users,)``, and as many rows of items.
    """
    pairs = torch.cat(
        [torch.stack([data.ids[data.train.rows], data.train.values]) for data in blocks], dim=1
    )
    user, item = torch.unique(pairs, dim=1)
    return torch.arange(n_users), Ragged.from_pairs(user, item, n_users)
