"""The settings of a run that every paper has. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from coterie.core.settings.sections import (
    EngineSettings,
    LoggerSettings,
    NamedData,
    PrivacySettings,
    RunSettings,
    at_least,
)
from coterie.core.settings.trainer import TrainerSettings

Reading = Literal["recommended", "literal", "released"]


@dataclass(frozen=True)
class BaseSettings:
    """One run of a paper; a paper's own settings are added by inheritance.

    Example:
        >>> @dataclass(frozen=True)
        ... class Settings(BaseSettings):
        ...     method: Literal["mine", "theirs"] = "mine"
        >>> Settings(rounds=5).engine.dtype
        'float32'
    """

    method: str = ""
    """Method of the paper, or a baseline."""
    reading: Reading = "recommended"
    """recommended: the idea done right; literal: as printed; released: as the public code does."""
    seed: int = 0
    """Seed of everything random."""
    rounds: int = 100
    """Most communication rounds in a block."""
    data: NamedData = field(default_factory=NamedData)
    engine: EngineSettings = field(default_factory=EngineSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    logger: LoggerSettings = field(default_factory=LoggerSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
