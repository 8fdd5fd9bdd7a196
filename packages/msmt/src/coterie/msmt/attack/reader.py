"""The server as a reader of what it hears, round by round: losses of rows, and moves of tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.data.samples.samples import MASK, Samples
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key
from coterie.msmt.attack.known import Seen
from coterie.msmt.attack.uploads import (
    LocalSteps,
    Membership,
    Occurrence,
    RowLosses,
    judged,
    judged_occurrence,
    occurring,
    rounding,
    untouched,
)
from coterie.msmt.data.describe import auc
from coterie.msmt.data.task import Task
from coterie.msmt.models.base import Batch, MultiTask

_AT_ONCE = 1 << 16
_FEWEST = 2  # rows of each kind: batch normalisation needs several


@dataclass(frozen=True)
class Candidates:
    """What is asked about a scenario, with the truth, which only the judge knows.

    Attributes:
        rows: members first, then as many others.
        is_member: ``(n,)`` bool.
        occurs: which categories of each field are in its training samples, F times ``(C,)`` bool.
    """

    rows: Batch
    is_member: Tensor
    occurs: Sequence[Tensor]


def candidates(task: Task, most: int, key: Key) -> dict[int, Candidates]:
    """Draw the candidates of every scenario, by its number.

    Members are training rows and others test rows, ``most`` of each, or as many as there are of the
    scarcer. A scenario that has fewer than two of either is left out.

    Args:
        task: what the scenarios hold.
        most: rows of each kind.
        key: of the draws; those of one scenario do not depend on the others.
    """
    data, found = task.clients, {}
    counts = torch.minimum(data.train.lengths, data.test.lengths).clamp(max=most).tolist()
    for place, count in enumerate(counts):
        if count < _FEWEST:
            continue
        one = torch.tensor([place])
        members, others = (
            _drawn(each.take(one), count, key.fold(name))
            for name, each in (("members", data.train), ("others", data.test))
        )
        rows = {name: torch.cat([members[name], others[name]]) for name in members}
        is_member = torch.arange(2 * count) < count
        occurs = _occurring(data.train.take(one), task.schema.vocabularies)
        found[place] = Candidates(rows, is_member, occurs)
    return found


def _drawn(samples: Samples, count: int, key: Key) -> Batch:
    """Draw some samples of a single scenario, without replacement."""
    batch = samples.batches(1, count, key.fold(samples.ids))(0, torch.tensor([0]))
    return {name: value[0, :count] for name, value in batch.items() if name != MASK}


def _occurring(samples: Samples, vocabularies: Sequence[int]) -> list[Tensor]:
    """Which categories of each field are in the samples of a single scenario."""
    batches = samples.batches(1, _AT_ONCE, None)
    found = [torch.zeros(size, dtype=torch.bool) for size in vocabularies]
    for number in range(int(batches.per_epoch)):
        ids = batches(number, torch.tensor([0]))["ids"][0]
        for field, size in enumerate(vocabularies):
            found[field] |= occurring(ids[:, field], size)
    return found


_TABLE = re.compile(r"(?:^|\.)inputs\.tables\.(\d+)\.weight$")
_OTHERS = 8
"""Most uploads of other scenarios that a fall is compared with."""
_ONE_IN_100 = 2.33
"""How many deviations only one of 100 normal numbers is above the mean."""
_VARIANCE = {"none": (0.0, 0.0), "gaussian": (1.0, 2.0), "laplace": (2.0, 5.0)}
"""Of noise of scale 1: its variance, and that of its squares over the variance's square."""


@dataclass(frozen=True)
class Members:
    """How well a scenario's training rows are told from other rows of it.

    Attributes:
        by_fall: of how far the upload lets the loss fall, and of the loss itself.
        beyond: AUC of how far it falls beyond what the uploads of other scenarios explain.
        control: AUC of the loss of the first network, which has seen no row: 0.5 but for chance, if
            members and others are alike.
        count: rows of each kind.
    """

    by_fall: Membership
    beyond: float
    control: float
    count: int


class MemberReader:
    """Reads from uploads which rows a scenario trained on.

    What is told of a round adds up to what was told before: losses before and after each upload,
    and what is left of the fall after a linear fit, over all rows, of the falls that the uploads of
    other scenarios give the same rows. These have not seen them, so that is what a row's loss falls
    by anyway.

    Args:
        network: the form of the network; values do not matter.
        first: values of the network that all start from.
        candidates: the rows.
        key: of dropout where statistics are taken.
    """

    def __init__(
        self, network: MultiTask, first: Mapping[str, Tensor], candidates: Candidates, key: Key
    ) -> None:
        self._losses_of, self._candidates, self._key = RowLosses(network), candidates, key
        self._first = self._losses(first)
        self._before, self._after, self._beyond = (torch.zeros_like(self._first) for _ in range(3))

    def read(self, seen: Seen, others: Sequence[Seen]) -> None:
        """Take in an upload of the scenario, and those of others in the same round."""
        before, after = self._losses(seen.before), self._losses(seen.after)
        self._before += before
        self._after += after
        falls = [self._losses(each.before) - self._losses(each.after) for each in others[:_OTHERS]]
        self._beyond += unexplained(before - after, falls)

    def found(self) -> Members:
        """Judge what was read so far."""
        is_member = self._candidates.is_member
        return Members(
            by_fall=judged(self._before, self._after, is_member),
            beyond=float(auc(self._beyond, is_member)),
            control=float(auc(-self._first, is_member)),
            count=int(is_member.sum()),
        )

    def _losses(self, values: Mapping[str, Tensor]) -> Tensor:
        return self._losses_of(values, self._candidates.rows, self._key)


def unexplained(values: Tensor, by: Sequence[Tensor]) -> Tensor:
    """What a linear fit of values ``(n,)`` by others of the same shape, and 1, leaves.

    Example:
        >>> x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
        >>> unexplained(3 * x + 1, [x]).abs().max().item() < 1e-12
        True
    """
    known = torch.stack([torch.ones_like(values), *by], 1)
    fitted = torch.linalg.lstsq(known, values[:, None], driver="gelsd").solution
    return values - (known @ fitted)[:, 0]


@dataclass
class _Table:
    """What is known of a table's rows: sums over uploads."""

    field: int
    squares: Tensor  # (C,) mean squares by which rows are not where unused ones would be
    memory: dict[str, Tensor] | None = None  # Adam's, of rows that were never used
    allowed: float = 0.0  # what rounding explains of these
    numbers: int = 0  # that each mean was of


class CategoryReader:
    """Reads from uploads of one scenario which categories are in its training samples.

    A row that no sample uses moves by weight decay alone, which the server computes; with clipped
    uploads by an unknown share of that, the same for all rows, so what is across this move counts.
    Behind noise a row must be further away than 99 of 100 unused ones are.

    Args:
        local: how scenarios train; ``steps`` and ``mu`` are those of each upload.
        privacy: clipping and noise, which everybody knows.
        keeps_memory: whether the optimizer remembers former rounds.
        still: names of the tables whose unused rows stay where they are, see `still_tables`.
    """

    def __init__(
        self,
        local: LocalSteps,
        privacy: PrivacySettings,
        keeps_memory: bool = True,
        still: Set[str] = frozenset(),
    ) -> None:
        self._local, self._privacy, self._keeps_memory = local, privacy, keeps_memory
        self._still = still
        self._tables: dict[str, _Table] = {}
        self._uploads = 0

    def read(self, seen: Seen, steps: int) -> None:
        """Take in one more upload, made in so many local steps."""
        local = replace(self._local, steps=steps, mu=self._local.mu + seen.pull)
        self._uploads += 1
        for name, increments in seen.increments.items():
            if match := _TABLE.search(name):
                before = seen.before[name]
                table = self._tables.setdefault(
                    name, _Table(int(match[1]), torch.zeros(len(before), dtype=torch.float64))
                )
                self._add(table, before, increments, None if name in self._still else local)

    def _add(
        self, table: _Table, before: Tensor, increments: Tensor, local: LocalSteps | None
    ) -> None:
        alone, memory = before, None
        if local is not None:
            alone, memory = untouched(before, local, table.memory)
        table.memory = memory if self._keeps_memory else None
        move, width = (alone - before).double(), before.shape[1]
        if self._privacy.clip is not None and width > 1:
            apart, width = across(increments.double(), move), width - 1
        else:
            apart = (before + increments - alone).double()
        table.squares += apart.square().sum(1) / width
        table.allowed += rounding(before, local or self._local) ** 2
        table.numbers += width

    def found(self, occurs: Sequence[Tensor]) -> Occurrence | None:
        """Judge what was read so far, over all tables together; None if none was uploaded.

        Args:
            occurs: the truth by field, each ``(C,)`` bool.
        """
        if not self._tables:
            return None
        tables = list(self._tables.values())
        scores = torch.cat([table.squares for table in tables])
        truth = torch.cat([occurs[table.field] for table in tables])
        is_found = torch.cat([table.squares > self._threshold(table) for table in tables])
        return judged_occurrence(scores, is_found, truth)

    def _threshold(self, table: _Table) -> float:
        """Sum of mean squares that rounding explains, and noise in 99 of 100 unused rows."""
        variance, of_squares = _VARIANCE[self._privacy.noise]
        # Wilson and Hilferty: the cube root of a mean of squares is nearly normal.
        ninth = of_squares / (9 * table.numbers)
        above = (1 - ninth + _ONE_IN_100 * math.sqrt(ninth)) ** 3
        return table.allowed + self._uploads * variance * self._privacy.scale**2 * above


def still_tables(network: MultiTask, pulled: bool) -> set[str]:
    """Names of the tables of which a step moves the rows that a batch looks up, and no others.

    Those are large ones, whose gradients are sparse, unless a method pulls all rows.
    """
    parts = network.named_modules() if not pulled else ()
    return {f"{name}.weight" for name, part in parts if getattr(part, "sparse", False)}


def across(rows: Tensor, moves: Tensor) -> Tensor:
    """What of rows ``(C, d)`` is at right angles to moves of the same shape.

    Example:
        >>> across(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0]])).tolist()
        [[0.0, 4.0]]
    """
    squares = moves.square().sum(1, keepdim=True)
    share = (rows * moves).sum(1, keepdim=True) / squares.where(squares > 0, 1.0)
    return rows - share * moves
