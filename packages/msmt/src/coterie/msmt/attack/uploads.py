"""What an upload tells: which rows a scenario trained on, which categories occur in its data.

A server that holds a row and wants to know puts the uploaded parts into the network as it knows it,
and looks whether the row's loss falls by more than that of others. What it does not know stays as
it was at first: all but W_s and the towers with PF-MSMTrec, nothing but running statistics with
FedAvg. The reader of loss thresholds (Yeom et al., CSF 2018) looks at the loss alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from coterie.core.local_training.alone import statistics_of
from coterie.core.local_training.losses import MethodOf, copied
from coterie.core.local_training.row_optimizer import Params
from coterie.core.tensors.keys import Key
from coterie.msmt.data.describe import auc
from coterie.msmt.models.base import Batch, MultiTask

Normalise = Literal["candidates", "initial"]
FALSE_ALARMS = 0.01
"""Share of the other rows that may be taken for members where members are caught."""
_ROWS = 4096


@dataclass(frozen=True)
class Membership:
    """How well members, rows that were trained on, are told from others.

    Attributes:
        auc: of how far the loss fell; chance 0.5.
        auc_loss: of the loss after the upload alone.
        caught: share of the members whose loss fell by more than that of all but 1 % of the others.
        fall_members: mean fall of the loss of members.
        fall_others: of others.
    """

    auc: float
    auc_loss: float
    caught: float
    fall_members: float
    fall_others: float


def with_upload(known: Mapping[str, Tensor], increments: Mapping[str, Tensor]) -> Params:
    """Put uploaded increments into what the server knows of a network.

    Raises:
        ValueError: there is an increment of something that is not known.

    Example:
        >>> with_upload({"a": torch.ones(1), "b": torch.ones(1)}, {"b": torch.ones(1)})
        {'a': tensor([1.]), 'b': tensor([2.])}
    """
    if strange := set(increments) - set(known):
        raise ValueError(f"no part of the network is called {sorted(strange)[0]}")
    return {n: value + increments[n] if n in increments else value for n, value in known.items()}


def judged(before: Tensor, after: Tensor, is_member: Tensor) -> Membership:
    """Judge losses of the same rows before and after an upload.

    Whoever reads several rounds gives the sums of the losses over them.

    Args:
        before: ``(n,)``.
        after: ``(n,)``.
        is_member: ``(n,)`` bool.

    Example:
        >>> found = judged(torch.ones(4), torch.tensor([0.1, 0.5, 0.8, 0.9]), torch.arange(4) < 2)
        >>> found.auc, found.caught, round(found.fall_members, 3)
        (1.0, 1.0, 0.7)
    """
    fall = before - after
    members, others = fall[is_member], fall[~is_member]
    return Membership(
        auc=float(auc(fall, is_member)),
        auc_loss=float(auc(-after, is_member)),
        caught=float((members > _but_few(others)).double().mean()),
        fall_members=float(members.mean()),
        fall_others=float(others.mean()),
    )


class RowLosses:
    """Losses of rows with one network after another, of the same form.

    A reader asks for hundreds of them, and a copy of a network takes longer than its losses of a
    few rows; so the copies are made once.

    Args:
        network: in any mode, which stays as it is; what is not given later is its own.
        normalise: statistics of batch normalisation, which nobody uploads. "candidates": those of
            the rows in question, members and others together, taken as in training from one batch
            of at most 4096 of them; "initial": those that the network has or that are given.
    """

    def __init__(self, network: MultiTask, normalise: Normalise = "candidates") -> None:
        self._logits = MethodOf(network, "logits", training=False)
        self._taking = RowStatistics(network) if normalise == "candidates" else None

    @torch.no_grad()
    def __call__(self, values: Mapping[str, Tensor], rows: Batch, key: Key) -> Tensor:
        """Cross-entropy of each row, the sum over tasks, ``(n,)`` float64.

        Args:
            values: parameters and buffers; what is not given is the network's own.
            rows: of one scenario.
            key: of dropout while statistics are taken.
        """
        known = {**values}
        if self._taking is not None:
            known |= self._taking(values, rows, key)
        parts = []
        for start in range(0, len(rows["labels"]), _ROWS):
            part = {name: value[start : start + _ROWS] for name, value in rows.items()}
            found = self._logits(known, part).double()
            labels = part["labels"].to(found)
            parts.append(binary_cross_entropy_with_logits(found, labels, reduction="none").sum(1))
        return torch.cat(parts)


class RowStatistics:
    """Statistics that a network's batch normalisation has of rows; labels are not looked at."""

    def __init__(self, network: MultiTask) -> None:
        taking = copied(network)
        for part in taking.modules():
            if isinstance(getattr(part, "momentum", None), float):
                part.momentum = 1.0  # type: ignore[assignment]
        self._first = statistics_of(taking)
        self._logits = MethodOf(taking, "logits", training=True)

    def __call__(self, values: Mapping[str, Tensor], rows: Batch, key: Key) -> Params:
        """Give them by name, of a network with other values; the key is of dropout."""
        found = {name: value.clone() for name, value in self._first.items()}
        step = -(-len(rows["labels"]) // _ROWS)
        with key.torch_rng():
            self._logits({**values, **found}, {n: each[::step] for n, each in rows.items()})
        return found


def _but_few(values: Tensor) -> Tensor:
    """The smallest value that no more than `FALSE_ALARMS` of the values are above."""
    ordered = values.sort(descending=True).values
    return ordered[int(FALSE_ALARMS * len(ordered))]


# Which categories occur in a scenario's data, told from an upload of embedding tables.
#
# Rows of categories that do not occur get no gradient. With weight decay they move all the same,
# and with Adam as far as others do: its steps have the length of the learning rate however small
# the gradient is. But where they move to follows from where they began, so the server computes it
# (`untouched`), and what moved otherwise occurred.

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
