"""What each client's own users had: counts that stay with it, and how strongly they count.

Popularity among its own users says of a shop what no popularity over all shops does. It needs no
training, and nothing of it leaves a client but how well it recommends with each strength, and how
much the gain by it varies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import PerClient
from coterie.llm.data.examples import OwnData
from coterie.llm.messages import WEIGH, Strengths

STRENGTHS = (0.0, 0.03, 0.1, 0.2, 0.4)
"""Of which validation chooses one."""
_TIE = 1e-9  # of recall: sums in another order are no better, and one user who gains is one error


class Compared(NamedTuple):
    """How well users are recommended to with each of G strengths, of which the first is mostly 0.

    Attributes:
        recall: ``(G,)`` mean Recall@10 of the users, float64; NaN without any.
        squares: ``(G,)`` mean square of what a strength gains a user over the first.
        users: how many.
    """

    recall: Tensor
    squares: Tensor
    users: int


def own_counts(data: OwnData, split: Split, n_items: int) -> Tensor:
    """Log(1 + count) of each item among a client's users, ``(n_items,)`` float64.

    Counted is what they had before validation, for the test also what they had in it.
    """
    parts = [data.had, data.newer] if split == "test" else [data.had]
    return torch.bincount(torch.cat(parts), minlength=n_items).double().log1p()


def compare(recalls: Sequence[Tensor]) -> Compared:
    """Compare the Recall@10 of the same users with each strength, ``(n,)`` each.

    Example:
        >>> compare([torch.tensor([0.2, 0.4]), torch.tensor([0.4, 0.4])]).squares
        tensor([0.0000, 0.0200], dtype=torch.float64)
    """
    each = torch.stack(list(recalls)).double()
    return Compared(each.mean(1), (each - each[0]).square().mean(1), each.shape[1])


def choose_strength(clients: Iterable[Compared], strengths: Sequence[float] = STRENGTHS) -> float:
    """Choose the strength with the best Recall@10 of all users, if that is no accident.

    It is the first, none, where the gain over that is not above one standard error of the mean of
    the users' gains, after the rule of one standard error of Breiman et al. (Classification and
    Regression Trees, 1984): often few users validate, and of several strengths one is mostly better
    to them by chance. Of equal ones it is the least.

    Args:
        clients: what was measured of the users of each. Who has none, or has scores that are not
            finite, is left out.
        strengths: those compared.
    """
    parts = [
        part
        for part in clients
        if part.users and bool(torch.cat([part.recall, part.squares]).isfinite().all())
    ]
    users = sum(part.users for part in parts)
    if users < 2:
        return strengths[0]  # one user's gain has no spread to be compared with
    counts = torch.tensor([[part.users] for part in parts]).double()
    gains = torch.stack([part.recall - part.recall[0] for part in parts])
    gain = (counts * gains).sum(0) / users
    square = (counts * torch.stack([part.squares for part in parts])).sum(0) / users
    best = int((gain >= gain.max() - _TIE).int().argmax())
    error = ((square - gain.square()).clamp(min=0) / (users - 1)).sqrt()
    return strengths[best] if bool(gain[best] > error[best] + _TIE) else strengths[0]


def ask_strength(cohort: Cohort, rows: Tensor) -> float:
    """Choose the strength of the clients' own counts by validation, as `choose_strength` does.

    Args:
        cohort: of all clients.
        rows: ``(K, d)`` what each holds of its adapter.
    """
    grid = torch.tensor(STRENGTHS, dtype=torch.float64)
    asked = {client: Strengths(rows[client], grid) for client in cohort.ids.tolist()}
    ups = cohort.ask(WEIGH, PerClient(asked)).ups.values()
    return choose_strength(
        Compared(up.recall.to(grid), up.squares.to(grid), int(up.users)) for up in ups
    )
