"""Which samples, and who holds them. Torch-free; docstrings are ``--help``."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.settings.sections import NamedData


@dataclass(frozen=True)
class ScenarioData(NamedData):
    """Which samples, and how they are cut into scenarios."""

    name: str = "sample"
    """sample (a generated world), or another name that `coterie data` lists."""
