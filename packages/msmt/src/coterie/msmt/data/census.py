"""Census-Income (KDD): people asked in 1994 and 1995, the usual real data of multi-task models.

UCI Machine Learning Repository, data set 117. The tasks are those of MMoE (Ma et al., KDD 2018,
section 5.1, group 1): ``income``, more than 50,000 dollars a year, and ``marital``, never married.
The instance weight is no input. Otherwise than there, neither are the columns of household and tax
filer, whose values say who is married or never was ("Child <18 never marr not in subfamily", "Joint
both under 65"): with them gradient boosting has an AUC of .98 and more on the second task.

A scenario is told by a column that is then no input:

- ``worker``, the class of worker in four groups: none (children, retired and others outside of the
  labour force), private, self-employed, government. The default, because labour statistics are kept
  by such sectors, all four have thousands of people, and both rates differ widely between them.
- ``race``, five groups of 1,200 to 84,000 of the test half, or ``sex``, two of like size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from coterie.core.data.sources.tables import Table, read_table
from coterie.core.data.sources.text_files import Layout
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import find_file
from coterie.core.tensors.keys import Key
from coterie.msmt.data.cut import Rows, cut
from coterie.msmt.data.task import Task
from coterie.msmt.data_sets import DATA_SETS
from coterie.msmt.settings import ScenarioData

COLUMNS = (
    *("age", "worker", "industry_code", "occupation_code", "education", "wage_per_hour"),
    *("enrolled", "marital", "industry", "occupation", "race", "hispanic", "sex", "union"),
    *("unemployment_reason", "employment", "capital_gains", "capital_losses", "dividends"),
    *("tax_filer", "previous_region", "previous_state", "household_detail", "household"),
    *("weight", "migration_msa", "migration_region", "move_within_region", "same_house"),
    *("previous_sunbelt", "employer_size", "family_under_18", "father_birth", "mother_birth"),
    *("birth", "citizenship", "own_business", "veteran_questionnaire", "veteran_benefits"),
    *("weeks_worked", "year", "income"),
)
"""The 42 columns in their order, by their descriptions in ``census-income.names``."""

_MONEY = ("wage_per_hour", "capital_gains", "capital_losses", "dividends")
NUMBERS = ("age", *_MONEY, "employer_size", "weeks_worked")
"""The continuous columns; money by its logarithm, as few have much."""

_NO_INPUTS = ("income", "marital", "weight", "tax_filer", "household", "household_detail")
_WORKERS = {
    "Not in universe": "none",
    "Never worked": "none",
    "Without pay": "none",
    "Private": "private",
    "Self-employed-incorporated": "self-employed",
    "Self-employed-not incorporated": "self-employed",
    "Federal government": "government",
    "Local government": "government",
    "State government": "government",
}
_NOTE = "columns of household and tax filer are no inputs: they tell the label marital"
_FILES = next(entry.files for entry in DATA_SETS if entry.name == "census-income")


def read_census(
    folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
) -> Task:
    """Read the files, and cut every scenario at random; see `coterie.msmt.data.make.READERS`.

    They are ``census-income.data`` and ``census-income.test``, whose rows are put together, or one
    of them.

    Raises:
        UserError: a file is missing or malformed.
    """
    scenario = settings.scenario or "worker"
    tables = _tables(folder)
    text = {
        name: pa.concat_arrays([pc.utf8_trim_whitespace(table.filled(name)) for table in tables])
        for name in COLUMNS
    }
    number, names = _scenarios(text[scenario], scenario, tables)
    inputs = [name for name in COLUMNS if name not in (*_NO_INPUTS, scenario)]
    rows = Rows(
        categories={name: _codes(text[name]) for name in inputs if name not in NUMBERS},
        numbers={name: _amounts(tables, name) for name in inputs if name in NUMBERS},
        scenario=number,
        scenarios=names,
        labels={"income": _income(text["income"], tables), "marital": _never(text["marital"])},
    )
    source = " and ".join(table.path.name for table in tables)
    return cut(
        rows,
        settings,
        key,
        name=f"census-income by {scenario} ({source})",
        scaling="range",
        dtype=dtype,
        notes=(_NOTE,),
    )


def counts(folder: Path) -> list[dict[str, Any]]:
    """Count the samples, for ``coterie data census-income``."""
    return [{"part": table.path.name, "samples": len(table)} for table in _tables(folder)]


def _tables(folder: Path) -> list[Table]:
    found = [path for name in _FILES if (path := find_file(folder, name))]
    if not found:
        raise UserError(f"{folder} has no {' or '.join(_FILES)} (nor .gz): put one of them there")
    return [read_table(path, Layout(COLUMNS, ",", whole_lines=True)) for path in found]


def _codes(values: pa.Array) -> Tensor:
    """Numbers of the words in alphabetic order, ``(n,)`` int64."""
    coded = values.dictionary_encode()
    words = coded.dictionary.to_pylist()
    place = {word: number for number, word in enumerate(sorted(words))}
    return torch.as_tensor(np.array([place[word] for word in words])[coded.indices.to_numpy()])


def _scenarios(
    values: pa.Array, column: str, tables: list[Table]
) -> tuple[Tensor, tuple[str, ...]]:
    coded = values.dictionary_encode()
    words = coded.dictionary.to_pylist()
    if column == "worker":
        unknown = next((word for word in words if word not in _WORKERS), None)
        if unknown is not None:
            raise _fault(
                tables, values.index(unknown).as_py(), f"'{unknown[:40]}' is no class of worker"
            )
        words = [_WORKERS[word] for word in words]
    names = tuple(sorted(set(words)))
    place = np.array([names.index(word) for word in words])
    return torch.as_tensor(place[coded.indices.to_numpy()]), names


def _amounts(tables: list[Table], column: str) -> Tensor:
    found = torch.as_tensor(np.concatenate([table.numbers(column) for table in tables]))
    return found.clamp(min=0.0).log1p() if column in _MONEY else found


def _income(values: pa.Array, tables: list[Table]) -> Tensor:
    """Whether it is above 50,000, ``(n,)`` uint8; the files say ``50000+.`` or ``- 50000.``."""
    above = pc.equal(values, "50000+.").to_numpy(zero_copy_only=False)
    below = pc.equal(values, "- 50000.").to_numpy(zero_copy_only=False)
    if not (above | below).all():
        row = int((~(above | below)).argmax())
        what = f"the income is '{values[row].as_py()[:40]}', not '50000+.' or '- 50000.'"
        raise _fault(tables, row, what)
    return torch.as_tensor(above).byte()


def _never(values: pa.Array) -> Tensor:
    return torch.as_tensor(pc.equal(values, "Never married").to_numpy(zero_copy_only=False)).byte()


def _fault(tables: list[Table], row: int, what: str) -> UserError:
    """Make the error for a row of the tables put together."""
    for table in tables:
        if row < len(table):
            return table.fault(row, what)
        row -= len(table)
    raise IndexError(row)
