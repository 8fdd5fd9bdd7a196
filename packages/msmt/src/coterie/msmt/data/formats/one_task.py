"""Files of categories with one label a row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from coterie.core.tensors.keys import Key
from coterie.msmt.data.cut import Rows, cut
from coterie.msmt.data.formats.named_tables import Tables, file_of
from coterie.msmt.data.task import Task
from coterie.msmt.settings.data import ScenarioData


@dataclass(frozen=True)
class OneTask:
    """How such a file is written.

    Attributes:
        name: of the data set; the file is ``name.csv``, or begins with the name.
        categories: columns that are inputs.
        task: name of the task.
        label: its column.
        scenario: column that tells scenarios apart.
        scenarios: its values that are taken.
    """

    name: str
    categories: tuple[str, ...]
    task: str
    label: str
    scenario: str
    scenarios: tuple[str, ...]

    def read(
        self, folder: Path, settings: ScenarioData, key: Key, dtype: torch.dtype = torch.float32
    ) -> Task:
        """Read the file, and cut every scenario at random; see `coterie.msmt.data.make.READERS`.

        Raises:
            UserError: the file is missing or malformed, or has none of the scenarios.
        """
        path = file_of(folder, f"{self.name}.csv", f"{self.name}*.csv")
        tables = Tables.read([path], (*self.categories, self.label, self.scenario))
        known = {name: name for name in self.scenarios}
        scenario, names, notes = tables.scenarios(self.scenario, known)
        rows = Rows(
            categories={name: tables.codes(name) for name in self.categories},
            numbers={},
            scenario=scenario,
            scenarios=names,
            labels={self.task: tables.label(self.label)},
        )
        rows = rows.take((scenario >= 0).nonzero().flatten())
        return cut(rows, settings, key, name=self.name, scaling="range", dtype=dtype, notes=notes)
