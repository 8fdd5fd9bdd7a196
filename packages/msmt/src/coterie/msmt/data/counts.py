"""Count the samples of the scenarios of sets that are read, for ``coterie data NAME``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from coterie.core.registry.papers import load
from coterie.core.tensors.keys import Key
from coterie.msmt.data.describe import describe
from coterie.msmt.data.make import READERS
from coterie.msmt.data.task import Task
from coterie.msmt.settings.data import ScenarioData


def of_scenarios(name: str, folder: Path) -> list[dict[str, Any]]:
    """Count the samples of each scenario, as a run with no settings would have them.

    Args:
        name: of the data set.
        folder: where its files are.

    Raises:
        UserError: a file is missing or malformed.
    """
    task: Task = load(READERS[name])(folder, ScenarioData(name=name), Key.from_seed(0))
    rows = []
    for row in describe(task):
        total = sum(row[part] for part in ("train", "valid", "test"))
        rows.append({"part": row.pop("scenario"), "samples": total, **row})
    return rows


aliexpress = partial(of_scenarios, "aliexpress")
tenrec = partial(of_scenarios, "tenrec")
ali_ccp = partial(of_scenarios, "ali-ccp")
kuairand = partial(of_scenarios, "kuairand")
mind = partial(of_scenarios, "mind")
"""Of a folder; named in `coterie.msmt.settings.data_sets`."""
