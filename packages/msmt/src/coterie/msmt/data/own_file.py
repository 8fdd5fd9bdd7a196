"""A file of the user's own, or data of ``datasets``: a sample a row, columns of any names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from coterie.core.data.sources.file_forms import columns_hint, form_of
from coterie.core.data.sources.hub_sets import own_path
from coterie.core.data.sources.own_file import parts_of, read_columns
from coterie.core.data.sources.part_folders import parts_in
from coterie.core.data.sources.tables import Table
from coterie.core.data.sources.text_files import existing, located
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.cut import Rows, cut
from coterie.msmt.data.task import Task
from coterie.msmt.settings import ScenarioData

FEW = 1000
"""Different values, at most, by which whole numbers count as a category."""

_REMEDY = "correct or delete the line"
_MISSING = ("", "nan", "NaN", "NA", "N/A", "null", "\\N")
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


@dataclass
class Chosen:
    """Which columns are inputs, and which are not."""

    categories: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Say it, a line each."""
        found = [
            "categories: " + (", ".join(self.categories) or "none"),
            "numbers: " + (", ".join(self.numbers) or "none"),
        ]
        if self.left_out:
            why = "left out, as they are dates, lists or text of which nearly all values differ"
            found.append(f"{', '.join(self.left_out)}: {why}")
        return found


def read_own_file(settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32) -> Task:
    """Read a file, and cut every scenario at random unless the file says the parts.

    Where no inputs are named, all columns without a role are looked at: text, and whole numbers
    with at most `FEW` different values or of a name that ends with ``id``, are categories; other
    numbers are numbers; text of which nearly all values differ, dates and lists are left out.
    Numbers get mean 0 and deviation 1. Labels are a funnel if each implies the ones before it. The
    order of the file's rows means nothing: they are sorted by what they say.

    Args:
        settings: the section ``data``, whose name is the path.
        key: of the draws.
        dtype: of the numbers.

    Raises:
        UserError: no such file or column, a label that is neither 0 nor 1, a scenario with a single
            sample, no rows, no inputs.
    """
    path = own_path(settings.name, settings.root)
    table = _table(path, settings)
    scenario, names = _scenarios(table, str(settings.scenario))
    labels = {name: _label(table, name) for name in settings.tasks}
    chosen = _chosen(table, settings)
    if not chosen.categories and not chosen.numbers:
        raise UserError(
            f"{path} has no inputs beside scenario and labels: name columns by --data.categories "
            "or --data.numbers"
        )
    rows = Rows(
        categories={name: _codes(table, name) for name in chosen.categories},
        numbers={name: _amounts(table, name) for name in chosen.numbers},
        scenario=scenario,
        scenarios=names,
        labels=labels,
        part=None if settings.split is None else torch.as_tensor(parts_of(table, settings.split)),
        funnel=_is_funnel(list(labels.values())),
    )
    name = f"{path.name} by {settings.scenario}"
    notes = [*chosen.notes(), *_funnel_note(rows)]
    rows = _sorted(rows)
    return cut(rows, settings, key, name=name, scaling="standard", dtype=dtype, notes=notes)


def _table(path: Path, settings: ScenarioData) -> Table:
    """All columns that may have a role, the named ones checked."""
    for file in parts_in(path) if existing(path).is_dir() else [path]:
        if form_of(file) == "json":
            raise UserError(f"{file} is JSON: save it as CSV or Parquet")
    names = _names(path, settings)
    wanted = {"scenario": (settings.scenario,), "split": (settings.split,)}
    wanted |= {kind: getattr(settings, kind) for kind in ("tasks", "categories", "numbers")}
    for kind, columns in wanted.items():
        for column in columns:
            if column is not None and column not in names:
                what = f"no column '{column}' (data.{kind})"
                raise located(path, 1, what, columns_hint(column, names))
    is_named = bool(settings.categories or settings.numbers)
    needed = {str(column) for columns in wanted.values() for column in columns}
    asked = needed if is_named else set(names)
    return read_columns(path, asked, remedy=_REMEDY, labels=settings.tasks)


def _names(path: Path, settings: ScenarioData) -> tuple[str, ...]:
    """Columns that the file has."""
    named = {str(settings.scenario), *settings.tasks, *settings.categories, *settings.numbers}
    return read_columns(path, named, remedy=_REMEDY).names


def _scenarios(table: Table, column: str) -> tuple[Tensor, tuple[str, ...]]:
    """Place of every row's scenario among their names, in alphabetic order."""
    coded = pc.utf8_trim_whitespace(table.filled(column)).dictionary_encode()
    words = coded.dictionary.to_pylist()
    names = sorted(words)
    place = {word: number for number, word in enumerate(names)}
    found = np.array([place[word] for word in words])[coded.indices.to_numpy()]
    single = np.bincount(found) == 1
    if single.any():
        row = int(single[found].argmax())
        raise table.fault(row, f"scenario '{names[found[row]][:40]}' has this single sample")
    return torch.as_tensor(found), tuple(names)


def _label(table: Table, column: str) -> Tensor:
    """Labels of a task, ``(n,)`` uint8."""
    values = table.values(column)
    number = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else _parsed(values)
    found = number.cast(pa.float64()).to_numpy(zero_copy_only=False)
    bad = ~((found == 0) | (found == 1))
    if bad.any():
        row = int(bad.argmax())
        value = values[row].as_py()
        what = "missing" if value in (None, "") else f"'{str(value)[:40]}', neither 0 nor 1"
        raise table.fault(row, f"the label '{column}' is {what}")
    return torch.as_tensor(found.astype(np.uint8))


def _chosen(table: Table, settings: ScenarioData) -> Chosen:
    if settings.categories or settings.numbers:
        return Chosen(list(settings.categories), list(settings.numbers))
    roles = {settings.scenario, settings.split, *settings.tasks}
    found = Chosen()
    for column in (name for name in table.names if name not in roles):
        kind = _kind(table, column)
        getattr(found, kind).append(column)
    return found


def _kind(table: Table, column: str) -> str:
    """Name the list of `Chosen` that a column belongs to."""
    values = _present(table.values(column))
    kind = values.type
    if pa.types.is_temporal(kind) or not (_is_text(values) or pa.types.is_primitive(kind)):
        return "left_out"
    known = values.drop_null()
    different = pc.count_distinct(known).as_py()
    number = _parsed(values)
    if number.null_count > values.null_count:  # there is text
        return "left_out" if different > max(FEW, len(known) / 2) else "categories"
    if len(known) and pc.all(pc.equal(pc.floor(number), number)).as_py():
        is_id = column.lower().endswith("id")
        return "categories" if different <= FEW or is_id else "numbers"
    return "numbers"


def _codes(table: Table, column: str) -> Tensor:
    """Places of a category's values in alphabetic order, ``(n,)`` int64; -1 where missing."""
    values = _present(table.values(column))
    if pa.types.is_nested(values.type):
        raise UserError(f"{table.path}: column '{column}' is of type {values.type}: leave it out")
    coded = values.dictionary_encode()
    words = [str(word) for word in coded.dictionary.to_pylist()]
    place = np.empty(len(words) + 1, dtype=np.int64)
    place[sorted(range(len(words)), key=words.__getitem__)] = np.arange(len(words))
    place[-1] = -1
    return torch.as_tensor(place[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)])


def _sorted(rows: Rows) -> Rows:
    """Sort by all columns; rows that are equal in all are equal, so any order gives the same."""
    parts = [] if rows.part is None else [rows.part]
    columns = [*rows.categories.values(), *rows.numbers.values(), *rows.labels.values()]
    keys = [column.numpy() for column in [*columns, *parts, rows.scenario]]
    return rows.take(torch.as_tensor(np.lexsort(keys)))


def _amounts(table: Table, column: str) -> Tensor:
    """Numbers of a column, ``(n,)`` float64; NaN where missing."""
    values = _present(table.values(column))
    number = _parsed(values).cast(pa.float64()).to_numpy(zero_copy_only=False)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    bad = there & ~np.isfinite(number)
    if bad.any():
        row = int(bad.argmax())
        what = f"column '{column}' is '{str(values[row].as_py())[:40]}', not a number"
        raise table.fault(row, what)
    return torch.as_tensor(np.where(there, number, np.nan))


def _present(values: pa.Array) -> pa.Array:
    """Make what stands for a missing value null; text is trimmed."""
    if _is_text(values):
        values = pc.utf8_trim_whitespace(values)
        absent = pc.is_in(values, value_set=pa.array(_MISSING, values.type))
        return pc.if_else(absent, pa.scalar(None, values.type), values)
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    return values


def _is_text(values: pa.Array) -> bool:
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def _parsed(values: pa.Array) -> pa.Array:
    """Numbers as float64; null for what is none."""
    if _is_text(values):
        values = pc.utf8_trim_whitespace(values)
        values = pc.if_else(pc.match_substring_regex(values, _NUMBER), values, None)
    try:
        return values.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(values), pa.float64())


def _is_funnel(labels: Sequence[Tensor]) -> bool:
    pairs = itertools.pairwise(labels)
    return len(labels) > 1 and all(bool((later <= first).all()) for first, later in pairs)


def _funnel_note(rows: Rows) -> list[str]:
    if not rows.funnel:
        return []
    return [f"each label implies those before it: {', '.join(rows.labels)} are taken for a funnel"]
