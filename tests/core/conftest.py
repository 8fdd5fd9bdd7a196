"""A small paper that is installed for the time of a test, with packed configurations."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from coterie.core.registry.papers import Paper, find_paper

PAPER = """
from coterie.core.registry.papers import Paper

PAPER = Paper(
    name="toyrec",
    package="toy",
    title="A toy",
    reference="Nobody, 2025",
    methods=("avg", "prox"),
    settings="coterie.toy.settings:Settings",
    experiment="coterie.toy.experiment:Experiment",
    tables="coterie.toy.results:make_table",
    bench="coterie.toy.results:bench",
    variant_keys=("data.name", "model.name"),
)
"""
SETTINGS = '''
from dataclasses import dataclass, field
from typing import Literal

from coterie.core.settings.sections import (
    DataSettings, EngineSettings, LoggerSettings, PrivacySettings, RunSettings,
)


@dataclass(frozen=True)
class ModelSettings:
    """The backbone."""

    name: Literal["mf", "mlp"] = "mf"
    """Which backbone."""
    lr: float = 0.1
    """Learning rate, 100 % of it."""
    widths: tuple[int, ...] = (8,)
    """Widths of the layers."""


@dataclass(frozen=True)
class AlgorithmSettings:
    """The algorithm."""

    beta: float = 0.9
    """Largest weight of the past."""


@dataclass(frozen=True)
class Settings:
    """One run."""

    method: Literal["avg", "prox"] = "avg"
    """Method."""
    reading: Literal["recommended", "literal"] = "recommended"
    """Reading."""
    seed: int = 0
    """Seed."""
    rounds: int = 10
    """Rounds."""
    model: ModelSettings = field(default_factory=ModelSettings)
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    data: DataSettings = field(default_factory=DataSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    logger: LoggerSettings = field(default_factory=LoggerSettings)
    run: RunSettings = field(default_factory=RunSettings)
'''
EXPERIMENT = """
class Experiment:
    def __init__(self, settings):
        self.settings = settings
"""
RESULTS = """
from coterie.core.tables.report import Report


def make_table(chosen, *, table, figure, seeds):
    settings = chosen.settings
    row = {"method": settings.method, "data": settings.data.name, "metric": "ndcg", "mean": 0.5,
           "sd": None, "seeds": len(seeds or ()), "paper": float("nan")}
    return Report(f"table{table}", "A table", [row], notes=["A miss."])


def bench(settings):
    yield {"name": "round", "ours": 1.0, "reference": 20.0, "ratio": 20.0,
           "max_abs_diff": 0.0, "unit": "ms"}
"""
FILES = {
    "toyrec.yaml": "algorithm: {beta: 0.8}\n",
    "toyrec/ml-100k-mf.yaml": "model: {lr: 0.5}\nalgorithm: {beta: 0.7}\n",
    "toyrec/mlp.yaml": "model: {lr: 0.2}\nalgorithm: {beta: 0.6}\n",
    "toyrec/sample-mlp.yaml": "model: {lr: 0.25}\n",
    "sweeps/toyrec.yaml": (
        "method: grid\ncommand: [coterie, train, toyrec, --rounds=3, '${args}']\n"
        "metric: {name: eval/ndcg@20, goal: maximize}\n"
        "parameters: {algorithm.beta: {values: [0.1, 0.2]}, model.name: {value: mlp}}\n"
    ),
}

_SETTINGS: list[ModuleType] = []
"""Its settings, once imported: the same text in every test, and a parser is made of each class."""


@pytest.fixture
def toy_site(tmp_path: Path) -> Path:
    """A folder for sys.path that holds the package and its entry point."""
    site = tmp_path / "site"
    package = site / "coterie" / "toy"
    info = site / "toy-1.dist-info"
    written = {
        package / "__init__.py": "",
        package / "paper.py": PAPER,
        package / "settings.py": SETTINGS,
        package / "experiment.py": EXPERIMENT,
        package / "results.py": RESULTS,
        info / "METADATA": "Metadata-Version: 2.1\nName: toy\nVersion: 1\n",
        info / "entry_points.txt": "[coterie.papers]\ntoyrec = coterie.toy.paper:PAPER\n",
        **{package / "configs" / name: text for name, text in FILES.items()},
    }
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return site


@pytest.fixture
def toy(toy_site: Path, monkeypatch: pytest.MonkeyPatch) -> Paper:
    """The toy paper, installed; the current folder is a fresh one."""
    monkeypatch.syspath_prepend(str(toy_site))
    monkeypatch.chdir(toy_site.parent)
    for name in [name for name in sys.modules if name.startswith("coterie.toy")]:
        monkeypatch.delitem(sys.modules, name)
    if not _SETTINGS:
        _SETTINGS.append(importlib.import_module("coterie.toy.settings"))
    monkeypatch.setitem(sys.modules, "coterie.toy.settings", _SETTINGS[0])
    return find_paper("toyrec")
