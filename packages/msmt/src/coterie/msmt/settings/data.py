"""Which samples, and who holds them. Torch-free; docstrings are ``--help``."""

from __future__ import annotations

from dataclasses import dataclass, fields

from coterie.core.errors import UserError, nearest
from coterie.core.settings.sections import NamedData, at_least, between, each_at_least
from coterie.msmt.settings.data_sets import (
    CENSUS_SCENARIOS,
    MOVIELENS_SCENARIOS,
    OPTIONS,
    OWN_FILE,
    is_file_name,
)

_SCENARIOS = {"ml-1m": MOVIELENS_SCENARIOS, "census-income": CENSUS_SCENARIOS}
_PLACE = {"name", "root"}


@dataclass(frozen=True)
class ScenarioData(NamedData):
    """Which samples, and how they are cut into scenarios, each a client."""

    name: str = "sample"
    """sample (a small generated world), world, teacher, ml-1m, census-income, another name that
    `coterie data` lists for this paper, the path of a CSV or Parquet file or of a folder made by
    save_to_disk of Hugging Face's datasets, or hf:OWNER/NAME of their hub."""
    shift: float | None = None
    """world, teacher: how far scenarios disagree, from 0 (not at all) to 1 (they have nothing in
    common); default 0.3 for world, 0 for teacher."""
    cov_shift: float = 0.3
    """world: how far the inputs of scenarios differ, from 0 to 1."""
    rho: float = 0.5
    """world, teacher: correlation of what the two tasks depend on, from -1 to 1."""
    snr: float | None = None
    """world, teacher: deviation of the score behind a label against that of the noise; default 0.9
    for world, 1.2 for teacher."""
    rows: tuple[int, ...] | None = None
    """world, teacher: training samples of each scenario; default [1000,2000,4000,8000] for world,
    twelve times 500 for teacher."""
    valid_rows: int | None = None
    """world, teacher: validation samples of every scenario; default 2000 for world, 1000 for
    teacher."""
    test_rows: int | None = None
    """world, teacher: test samples of every scenario; default 6000 for world, 3000 for teacher."""
    scenario: str | None = None
    """What tells scenarios apart: of ml-1m gender (default) or age, of census-income worker
    (default), race or sex, of a file the name of a column."""
    tasks: tuple[str, ...] = ()
    """Columns of a file that hold the labels, 0 or 1, as [click,buy]."""
    categories: tuple[str, ...] = ()
    """Columns of a file that are categories; where neither these nor numbers are named, all columns
    are looked at, and the run says what was chosen."""
    numbers: tuple[str, ...] = ()
    """Columns of a file that are numbers."""
    split: str | None = None
    """Column of a file that says train, valid or test; default is to cut at random."""
    valid: float = 0.1
    """Share of the samples that choices are made by, where they are cut at random: of every
    scenario, of ml-1m of every user."""
    test: float = 0.1
    """Share of the samples that is tested, likewise."""
    samples: int | None = None
    """Most samples of a scenario, drawn at random, for small trials."""
    paper_protocol: bool = False
    """Choose by the test samples, as the paper's figures are: validation samples stay in training.
    Results are then too good."""

    def __post_init__(self) -> None:
        for name in ("shift", "cov_shift"):
            value = getattr(self, name)
            at_least(f"data.{name}", value, 0)
            if value is not None and value > 1:
                raise UserError(f"'data.{name}' must be at most 1, not {value:g}")
        if not -1 <= self.rho <= 1:
            raise UserError(f"'data.rho' must be from -1 to 1, not {self.rho:g}")
        between("data.snr", self.snr, 0, 100)
        each_at_least(self, 1, "valid_rows", "test_rows", "samples", prefix="data.")
        if self.rows is not None and (not self.rows or min(self.rows) < 1):
            raise UserError("'data.rows' must be numbers of samples, each at least 1")
        for name in ("valid", "test"):
            between(f"data.{name}", getattr(self, name), 0, 0.4)
        self._check_columns()
        self._refuse_idle()

    def _check_columns(self) -> None:
        """Check what tells scenarios apart, and that a file's columns are named once."""
        known = _SCENARIOS.get(self.name)
        if known and self.scenario not in (None, *known):
            raise UserError(
                f"'data.scenario' of {self.name} is one of {', '.join(known)}, not "
                f"'{self.scenario}': {nearest(str(self.scenario), known)}"
            )
        if self.is_file and (self.scenario is None or not self.tasks):
            lacking = "data.scenario" if self.scenario is None else "data.tasks"
            raise UserError(
                f"{self.name} is a file: name its column of scenarios by --data.scenario COLUMN "
                f"and those of labels by --data.tasks [COLUMN,…] ('{lacking}' is missing)"
            )
        roles = [*self.tasks, *self.categories, *self.numbers]
        roles += [name for name in (self.scenario, self.split) if name is not None]
        for name in roles:
            if self.is_file and roles.count(name) > 1:
                raise UserError(f"column '{name}' has two roles in data: leave one of them out")

    def _refuse_idle(self) -> None:
        """Refuse a setting that was changed and has no effect."""
        taken = OPTIONS.get(self.name, OWN_FILE if self.is_file else None)
        idle: dict[str, str] = {}
        if self.paper_protocol:
            why = "data.paper_protocol, by which the test samples take their place"
            idle |= dict.fromkeys(("valid", "valid_rows"), why)
        if self.split is not None:
            why = "data.split: the file says itself which samples are for what"
            idle |= dict.fromkeys(("valid", "test"), why)
        if taken is not None:
            names = {setting.name for setting in fields(self)} - _PLACE
            idle |= dict.fromkeys(names - taken, f"the data set {self.name}")
        for setting in fields(self):
            if setting.name in idle and getattr(self, setting.name) != setting.default:
                reason = idle[setting.name]
                raise UserError(f"'data.{setting.name}' has no effect with {reason}: leave it out")

    @property
    def is_file(self) -> bool:
        """Whether the name is the path of a file of the user's own."""
        return self.name not in OPTIONS and is_file_name(self.name)
