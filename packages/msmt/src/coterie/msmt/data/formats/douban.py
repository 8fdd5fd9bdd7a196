"""Douban (Zhu et al., 2020): books, films and music are the scenarios, a good rating the one task.

Read as Scenario-Wise-Rec shares it: ``douban.csv`` or another name that begins with ``douban``,
with the columns ``user_id``, ``item_id``, ``rating`` (0 or 1), ``domain``, ``living_place``,
``time_bin`` (when the user joined). Users are the same people in all domains; the living place may
be blank.
"""

from __future__ import annotations

from pathlib import Path

import torch

from coterie.core.tensors.keys import Key
from coterie.msmt.data.cut import Rows, cut
from coterie.msmt.data.formats.named_tables import Tables, file_of
from coterie.msmt.data.task import Task
from coterie.msmt.settings.data import ScenarioData

SCENARIOS = ("book", "music", "movie")
CATEGORIES = ("user_id", "item_id", "living_place", "time_bin")


def read_douban(
    folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
) -> Task:
    """Read the file, and cut every domain at random.

    Args:
        folder: has it, gzipped or not.
        settings: the section ``data``.
        key: of the draws.
        dtype: of the numbers, of which there are none.

    Raises:
        UserError: the file is missing or malformed, or has none of the domains.
    """
    path = file_of(folder, "douban.csv", "douban*.csv")
    tables = Tables.read([path], (*CATEGORIES, "rating", "domain"))
    scenario, names, notes = tables.scenarios("domain", {name: name for name in SCENARIOS})
    rows = Rows(
        categories={name: tables.codes(name) for name in CATEGORIES},
        numbers={},
        scenario=scenario,
        scenarios=names,
        labels={"rating": tables.label("rating")},
    )
    rows = rows.take((scenario >= 0).nonzero().flatten())
    return cut(rows, settings, key, name="douban", scaling="range", dtype=dtype, notes=notes)
