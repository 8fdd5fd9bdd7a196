"""MIND (Wu et al., ACL 2020): kinds of news are the scenarios, the click is the one task.

Read as Scenario-Wise-Rec shares it, an impression a row: ``mind.csv`` or another name that begins
with ``mind``, with the columns ``User_ID``, ``News_ID``, ``label``, ``Category``, ``SubCategory``.
The four categories that are used there are taken.
"""

from __future__ import annotations

from pathlib import Path

import torch

from coterie.core.tensors.keys import Key
from coterie.msmt.data.cut import Rows, cut
from coterie.msmt.data.formats.named_tables import Tables, file_of
from coterie.msmt.data.task import Task
from coterie.msmt.settings.data import ScenarioData

SCENARIOS = ("news", "lifestyle", "sports", "finance")
CATEGORIES = ("User_ID", "News_ID", "SubCategory")


def read_mind(
    folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
) -> Task:
    """Read the file, and cut every category at random.

    Args:
        folder: has it, gzipped or not.
        settings: the section ``data``.
        key: of the draws.
        dtype: of the numbers, of which there are none.

    Raises:
        UserError: the file is missing or malformed, or has none of the categories.
    """
    path = file_of(folder, "mind.csv", "mind*.csv")
    tables = Tables.read([path], (*CATEGORIES, "label", "Category"))
    scenario, names, notes = tables.scenarios("Category", {name: name for name in SCENARIOS})
    rows = Rows(
        categories={name: tables.codes(name) for name in CATEGORIES},
        numbers={},
        scenario=scenario,
        scenarios=names,
        labels={"click": tables.label("label")},
    )
    rows = rows.take((scenario >= 0).nonzero().flatten())
    return cut(rows, settings, key, name="mind", scaling="range", dtype=dtype, notes=notes)
