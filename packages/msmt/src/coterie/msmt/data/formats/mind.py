"""MIND (Wu et al., ACL 2020): kinds of news are the scenarios, the click is the one task.

Read as Scenario-Wise-Rec shares it, an impression a row: ``mind.csv`` or another name that begins
with ``mind``, with the columns ``User_ID``, ``News_ID``, ``label``, ``Category``, ``SubCategory``.
The four categories that are used there are taken.
"""

from __future__ import annotations

from pathlib import Path

import torch

from coterie.core.tensors.keys import Key
from coterie.msmt.data.formats.one_task import OneTask
from coterie.msmt.data.task import Task
from coterie.msmt.settings.data import ScenarioData

_MIND = OneTask(
    name="mind",
    categories=("User_ID", "News_ID", "SubCategory"),
    task="click",
    label="label",
    scenario="Category",
    scenarios=("news", "lifestyle", "sports", "finance"),
)


def read_mind(
    folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
) -> Task:
    """Read the file, and cut every category at random; see `OneTask.read`."""
    return _MIND.read(folder, settings, key, dtype)
