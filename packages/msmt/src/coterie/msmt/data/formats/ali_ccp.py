"""Ali-CCP (Ma et al., SIGIR 2018; tianchi 408): positions on the page are the scenarios.

Read as Scenario-Wise-Rec and torch-rechub share it: ``ali_ccp_train.csv``, ``ali_ccp_val.csv``,
``ali_ccp_test.csv`` (or ``…_sample.csv``), whose column ``301`` is the position. Columns that begin
with ``D`` are numbers, all others categories.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID
from coterie.core.tensors.keys import Key
from coterie.msmt.data.cut import Rows, cut
from coterie.msmt.data.formats.named_tables import Tables, file_of
from coterie.msmt.data.task import Task
from coterie.msmt.settings.data import ScenarioData

TASKS = ("click", "purchase")
_SCENARIO = "301"
_SCENARIOS = {str(value): f"position {value}" for value in (1, 2, 3)}
_PARTS = {"train": TRAIN, "val": VALID, "test": TEST}


def read_ali_ccp(
    folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
) -> Task:
    """Read the three files, in the parts that they give; see `coterie.msmt.data.make.READERS`.

    Raises:
        UserError: a file is missing or malformed, or a row has a purchase without a click.
    """
    names = [(f"ali_ccp_{part}.csv", f"ali_ccp_{part}_sample.csv") for part in _PARTS]
    tables = Tables.read([file_of(folder, *each) for each in names], (*TASKS, _SCENARIO))
    scenario, scenarios, notes = tables.scenarios(_SCENARIO, _SCENARIOS)
    inputs = [name for name in tables.names if name not in (*TASKS, _SCENARIO)]
    parts = [torch.full((len(t),), p) for t, p in zip(tables.tables, _PARTS.values(), strict=True)]
    rows = Rows(
        categories={name: tables.codes(name) for name in inputs if not name.startswith("D")},
        numbers={name: tables.numbers(name) for name in inputs if name.startswith("D")},
        scenario=scenario,
        scenarios=scenarios,
        labels=_labels(tables),
        part=torch.cat(parts),
        funnel=True,
    )
    rows = rows.take((scenario >= 0).nonzero().flatten())
    return cut(rows, settings, key, name="ali-ccp", scaling="range", dtype=dtype, notes=notes)


def _labels(tables: Tables) -> dict[str, Tensor]:
    labels = {name: tables.label(name) for name in TASKS}
    torn = labels["purchase"] > labels["click"]
    if bool(torn.any()):
        raise tables.fault(int(torn.int().argmax()), "a purchase without a click")
    return labels
