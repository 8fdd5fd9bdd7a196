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
from coterie.msmt.data.formats.one_task import OneTask
from coterie.msmt.data.task import Task
from coterie.msmt.settings.data import ScenarioData

_DOUBAN = OneTask(
    name="douban",
    categories=("user_id", "item_id", "living_place", "time_bin"),
    task="rating",
    label="rating",
    scenario="domain",
    scenarios=("book", "music", "movie"),
)


def read_douban(
    folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
) -> Task:
    """Read the file, and cut every domain at random; see `OneTask.read`."""
    return _DOUBAN.read(folder, settings, key, dtype)
