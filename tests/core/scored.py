"""What a user of a run is scored, as serving asks for it."""

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.run.scoring import score_clients


def scores_of_user(module: FederatedRun, user: int, n_items: int = 1) -> Tensor:
    """Scores of a batch of one, ``(1, n_items)``; raises where there are none."""
    [(places, found)] = score_clients(module, torch.tensor([user]), n_items)
    assert places.tolist() == [0]
    if isinstance(found, UserError):
        raise found
    return found
