"""Cut samples that were read into scenarios and parts, and number what they hold.

Nothing is learnt from validation and test samples: ids are numbered, and numbers scaled, by the
training samples alone. A category's value that does not occur there has the id 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key, shuffle_rows
from coterie.core.tensors.stacked import Ragged
from coterie.msmt.data.task import Schema, Task
from coterie.msmt.settings import ScenarioData

Scaling = Literal["range", "standard"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples as they were read, in their order.

    Attributes:
        categories: by name, codes of the values, each ``(n,)`` int64 from 0; -1 where missing.
        numbers: by name, each ``(n,)`` float64; NaN where missing.
        scenario: ``(n,)`` int64, places among the names.
        scenarios: names.
        labels: by the task's name, each ``(n,)`` uint8, 0 or 1.
        part: ``(n,)`` int64, the parts that the source comes in, or None.
        group: ``(n,)`` int64 from 0, whose samples are cut by the shares; default the scenario.
        funnel: see `coterie.msmt.data.task.Schema`.
    """

    categories: Mapping[str, Tensor]
    numbers: Mapping[str, Tensor]
    scenario: Tensor
    scenarios: tuple[str, ...]
    labels: Mapping[str, Tensor]
    part: Tensor | None = None
    group: Tensor | None = None
    funnel: bool = False

    def __len__(self) -> int:
        return self.scenario.numel()

    def take(self, index: Tensor) -> Rows:
        """Rows ``index``, ``(m,)`` int64, in that order."""
        return replace(
            self,
            categories={name: values[index] for name, values in self.categories.items()},
            numbers={name: values[index] for name, values in self.numbers.items()},
            scenario=self.scenario[index],
            labels={name: values[index] for name, values in self.labels.items()},
            part=None if self.part is None else self.part[index],
            group=None if self.group is None else self.group[index],
        )


def cut(
    rows: Rows,
    settings: ScenarioData,
    key: Key,
    *,
    name: str,
    scaling: Scaling,
    dtype: torch.dtype = torch.float32,
    notes: Sequence[str] = (),
) -> Task:
    """Make a task of rows.

    Args:
        rows: as they were read.
        settings: which of them, and which shares.
        key: of the draws.
        name: of the data set.
        scaling: ``range`` maps a number's training values onto [0, 1], others to the nearest end;
            ``standard`` gives them mean 0 and deviation 1. Missing numbers become 0.
        dtype: of the numbers.
        notes: on how the rows were read.

    Raises:
        UserError: a scenario is left without training samples.
    """
    if settings.samples is not None:
        rows = rows.take(some(rows.scenario, settings.samples, key.fold("samples")))
    part = rows.part
    if part is None:
        group = rows.scenario if rows.group is None else rows.group
        valid = 0.0 if settings.paper_protocol else settings.valid
        part = parts(group, key.fold("cut"), valid, settings.test)
    if settings.paper_protocol:
        part = part.masked_fill(part == VALID, TRAIN)
    _check_training(rows, part)
    ids, vocabularies, of_ids = _categories(rows, part)
    numbers, of_numbers = _numbers(rows, part == TRAIN, scaling)
    fields = {
        "ids": ids,
        "numbers": numbers.to(dtype),
        "scenario": rows.scenario,
        "labels": torch.stack(list(rows.labels.values()), 1),
    }
    tasks, scenarios = tuple(rows.labels), rows.scenarios
    schema = Schema(tasks, scenarios, vocabularies, numbers.shape[1], funnel=rows.funnel)
    held = [
        _of_part(fields, (part == number).nonzero().flatten(), len(scenarios))
        for number in (TRAIN, VALID, TEST)
    ]
    if settings.paper_protocol:
        held[1] = held[2]
    return Task(name, schema, SplitSamples(*held), notes=(*notes, *of_ids, *of_numbers))


def parts(group: Tensor, key: Key, valid: float, test: float) -> Tensor:
    """Draw the part of every row: random shares of each group; one row at least is to train.

    Numbers of rows are rounded at random, so that shares hold over many small groups.

    Args:
        group: ``(n,)`` int64 from 0.
        key: of the draws; a group's is by its number.
        valid: share of the validation rows.
        test: share of the test rows.

    Returns:
        ``(n,)`` int64 of `TRAIN`, `VALID` and `TEST`.

    Example:
        >>> found = parts(torch.tensor([0] * 10 + [1]), Key.from_seed(0), 0.1, 0.3)
        >>> torch.bincount(found[:10]).tolist(), int(found[10])
        ([6, 1, 3], 0)
    """
    members, shuffled = _shuffled(group, key)
    free = (members.lengths - 1).clamp(min=0)
    n_test = _rounded(test * members.lengths, key.fold("test")).minimum(free)
    n_valid = _rounded(valid * members.lengths, key.fold("valid")).minimum(free - n_test)
    row, position = members.rows, members.positions
    left = (members.lengths - n_test - n_valid)[row]
    drawn = torch.where(position < left, TRAIN, VALID)
    drawn[position >= left + n_valid[row]] = TEST
    return torch.empty_like(group).scatter_(0, shuffled, drawn)


def some(group: Tensor, most: int, key: Key) -> Tensor:
    """Draw at most so many rows of each group; returns their places, ascending.

    Example:
        >>> some(torch.tensor([0, 1, 1, 1]), 2, Key.from_seed(0)).numel()
        3
    """
    members, shuffled = _shuffled(group, key)
    return shuffled[members.positions < most].sort().values


def numbered(codes: Tensor, trained: Tensor) -> tuple[Tensor, int]:
    """Number the codes that occur in training from 1, in ascending order; all others are 0.

    Args:
        codes: ``(n,)`` int64 from 0, -1 where missing.
        trained: ``(n,)`` bool, the training rows.

    Returns:
        ids ``(n,)`` int32, and how many ids there are, 0 included.

    Example:
        >>> trained = torch.tensor([True, True, True, False])
        >>> ids, count = numbered(torch.tensor([7, 3, -1, 5]), trained)
        >>> ids.tolist(), count
        ([2, 1, 0, 0], 3)
    """
    known = codes[trained & (codes >= 0)].unique()
    table = torch.zeros(int(codes.max()) + 2 if len(codes) else 1, dtype=torch.int32)
    table[known + 1] = torch.arange(1, len(known) + 1, dtype=torch.int32)
    return table[codes + 1], len(known) + 1


def _rounded(amounts: Tensor, key: Key) -> Tensor:
    """Whole numbers ``(G,)`` int64 around the amounts, which are their means."""
    return (amounts.double() + key.uniform(len(amounts), dtype=torch.float64)).floor().long()


def _shuffled(group: Tensor, key: Key) -> tuple[Ragged, Tensor]:
    """Rows of each group, and all rows by group, those of each in random order."""
    n_groups = int(group.max()) + 1 if len(group) else 0
    members = Ragged.from_pairs(group, torch.arange(len(group)), n_groups)
    keys = key.fold(torch.arange(n_groups)).take(members.rows)
    return members, members.values[shuffle_rows(keys, members.rows, members.positions)]


def _check_training(rows: Rows, part: Tensor) -> None:
    trained = torch.bincount(rows.scenario[part == TRAIN], minlength=len(rows.scenarios))
    for place in (trained == 0).nonzero().flatten().tolist():
        raise UserError(
            f"scenario '{rows.scenarios[place]}' has no training sample: leave it out of the data"
        )


def _categories(rows: Rows, part: Tensor) -> tuple[Tensor, tuple[int, ...], list[str]]:
    """Ids ``(n, F)``, how many each field has, and notes."""
    trained = part == TRAIN
    columns, counts, missing, unseen = [], [], {}, {}
    for name, codes in rows.categories.items():
        ids, count = numbered(codes, trained)
        columns.append(ids)
        counts.append(count)
        missing[name] = int((codes < 0).sum())
        unseen[name] = int(((codes >= 0) & (ids == 0)).sum())
    ids = torch.stack(columns, 1) if columns else torch.zeros(len(rows), 0, dtype=torch.int32)
    notes = _listed("values of validation and test that training lacks (id 0)", unseen)
    return ids, tuple(counts), notes + _listed("missing values (id 0)", missing)


def _numbers(rows: Rows, trained: Tensor, scaling: Scaling) -> tuple[Tensor, list[str]]:
    """Scaled numbers ``(n, P)`` float64, and notes."""
    missing = {name: int(values.isnan().sum()) for name, values in rows.numbers.items()}
    scaled = [_scaled(values, trained, scaling) for values in rows.numbers.values()]
    found = torch.stack(scaled, 1) if scaled else torch.zeros(len(rows), 0, dtype=torch.float64)
    return found, _listed("missing numbers (0)", missing)


def _scaled(values: Tensor, trained: Tensor, scaling: Scaling) -> Tensor:
    known = values[trained & ~values.isnan()]
    if not len(known):
        return torch.zeros_like(values)
    if scaling == "range":
        low, width = known.min(), known.max() - known.min()
        found = ((values - low) / width).clamp(0.0, 1.0) if width > 0 else torch.zeros_like(values)
    else:
        width = known.std(correction=0)
        found = (values - known.mean()) / width if width > 0 else torch.zeros_like(values)
    return found.nan_to_num(nan=0.0)


def _listed(what: str, counts: Mapping[str, int]) -> list[str]:
    some = [f"{name} {count:,}" for name, count in counts.items() if count]
    return [f"{what}: {', '.join(some)}"] if some else []


def _of_part(fields: Mapping[str, Tensor], index: Tensor, n_scenarios: int) -> SampleData:
    """Samples of a part by scenario, in their order."""
    members = Ragged.from_pairs(fields["scenario"][index], index, n_scenarios)
    samples = {name: values[members.values] for name, values in fields.items()}
    return SampleData(torch.arange(n_scenarios), samples, members.offsets)
