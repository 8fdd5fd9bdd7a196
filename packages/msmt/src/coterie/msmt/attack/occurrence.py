"""Which categories occur in a scenario's data, told from an upload of embedding tables.

Rows of categories that do not occur get no gradient. With weight decay they move all the same, and
with Adam as far as others do: its steps have the length of the learning rate however small the
gradient is. But where they move to follows from where they began, so the server computes it
(`untouched`), and what moved otherwise occurred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.msmt.data.area import auc

_ROUNDINGS = 8.0


@dataclass(frozen=True)
class LocalSteps:
    """How scenarios train, which everybody knows.

    Attributes:
        steps: in the round; of the number of samples, which is uploaded, and the batch size.
        lr: learning rate.
        weight_decay: L2 pull, added to the gradient.
        optimizer: what makes the steps.
        mu: μ of FedProx, whose pull moves all rows too.
    """

    steps: int
    lr: float
    weight_decay: float = 0.0
    optimizer: Literal["adam", "sgd"] = "adam"
    mu: float = 0.0


@dataclass(frozen=True)
class Occurrence:
    """How well categories that occur are told from others; NaN where there is no question.

    Attributes:
        auc: of how far rows are from where weight decay alone takes them; chance 0.5.
        precision: share of the rows found that occur; those are found that are further from there
            than rounding explains.
        recall: share of the rows that occur that are found.
        chance: share of all rows that occur, the precision of a guess.
    """

    auc: float
    precision: float
    recall: float
    chance: float


def judged_occurrence(scores: Tensor, found: Tensor, occurs: Tensor) -> Occurrence:
    """Judge what was told of categories.

    Args:
        scores: ``(C,)`` how far each row is from where weight decay alone takes it.
        found: ``(C,)`` bool, the rows taken for used ones.
        occurs: ``(C,)`` bool, the truth, as of `occurring`.
    """
    hits = float((found & occurs).sum())
    return Occurrence(
        auc=float(auc(scores, occurs)),
        precision=_share(hits, found),
        recall=_share(hits, occurs),
        chance=float(occurs.double().mean()),
    )


def occurring(ids: Tensor, n_categories: int) -> Tensor:
    """Which of a field's categories are in samples' ids ``(n,)``: ``(C,)`` bool.

    Example:
        >>> occurring(torch.tensor([0, 2, 2]), 4).tolist()
        [True, False, True, False]
    """
    return torch.bincount(ids.long(), minlength=n_categories) > 0


def untouched(
    before: Tensor, local: LocalSteps, memory: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Where rows get that no sample uses, by the pull of weight decay (and of FedProx) alone.

    Args:
        before: ``(C, d)`` the table that the scenario began the round with.
        local: how it trains.
        memory: Adam's moments of rows that were never used, of the round before; None in the first
            round, and where moments are made anew.

    Returns:
        The rows, ``(C, d)``, and what the optimizer remembers of them.

    Example:
        >>> table = torch.tensor([[1.0], [0.0]])
        >>> untouched(table, LocalSteps(2, lr=0.1, weight_decay=1.0, optimizer="sgd"))[0]
        tensor([[0.8100],
                [0.0000]])
    """
    rows = torch.nn.Parameter(before.clone())
    rates = {"lr": local.lr, "weight_decay": local.weight_decay}
    is_adam = local.optimizer == "adam"
    kind = torch.optim.Adam if is_adam else torch.optim.SGD
    optimizer: torch.optim.Optimizer = kind([rows], **rates)  # type: ignore[arg-type]
    if memory is not None:
        optimizer.state[rows] = {name: value.clone() for name, value in memory.items()}
    for _ in range(local.steps):
        rows.grad = local.mu * (rows.detach() - before)
        optimizer.step()
    return rows.detach(), dict(optimizer.state[rows])


def rounding(before: Tensor, local: LocalSteps) -> float:
    """Distance that rounding explains: that of so many sums, by chance up or down."""
    size = float(before.double().square().mean().sqrt()) + local.lr
    return _ROUNDINGS * torch.finfo(before.dtype).eps * size * max(1, local.steps) ** 0.5


def _share(hits: float, of: Tensor) -> float:
    count = int(of.sum())
    return hits / count if count else float("nan")
