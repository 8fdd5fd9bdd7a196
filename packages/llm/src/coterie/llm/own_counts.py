"""What each client's own users had: counts that stay with it, and how strongly they count.

Popularity among its own users says of a shop what no popularity over all shops does. It needs no
training, and nothing of it leaves a client but how well it recommends with each strength.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import PerClient
from coterie.llm.data.examples import OwnData
from coterie.llm.messages import WEIGH, Strengths

STRENGTHS = (0.0, 0.03, 0.1, 0.2, 0.4)
"""Of which validation chooses one."""
_TIE = 1e-9  # of recall: sums in another order are no better


def own_counts(data: OwnData, split: Split, n_items: int) -> Tensor:
    """Log(1 + count) of each item among a client's users, ``(n_items,)`` float64.

    Counted is what they had before validation, for the test also what they had in it.
    """
    parts = [data.had, data.newer] if split == "test" else [data.had]
    return torch.bincount(torch.cat(parts), minlength=n_items).double().log1p()


def ask_strength(cohort: Cohort, rows: Tensor) -> float:
    """Choose the strength of the clients' own counts by the Recall@10 of all users on validation.

    Of equal ones it is the least; 0 where no client has a user to validate on.

    Args:
        cohort: of all clients.
        rows: ``(K, d)`` what each holds of its adapter.
    """
    grid = torch.tensor(STRENGTHS, dtype=torch.float64)
    asked = {client: Strengths(rows[client], grid) for client in cohort.ids.tolist()}
    ups = cohort.ask(WEIGH, PerClient(asked)).ups.values()
    total, users = torch.zeros_like(grid), 0
    for up in ups:
        if (count := int(up.users)) and bool(torch.isfinite(up.recall).all()):
            total, users = total + up.recall.to(total) * count, users + count
    good = total >= total.max() - _TIE * users
    return STRENGTHS[int(good.int().argmax())] if users else 0.0
