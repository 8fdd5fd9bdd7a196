"""Settings of MTAL and the methods beside it. Torch-free."""

from coterie.assisted.settings.data import GENRES, DomainSettings, Feedback
from coterie.assisted.settings.protection import (
    FEWEST,
    RESIDUAL_STEP,
    SENDING,
    TOO_FEW,
    ProtectSettings,
    covers,
)
from coterie.assisted.settings.run import (
    EXCHANGING,
    OF_SAMPLES,
    UNTRAINED,
    AssistSettings,
    EtaRule,
    Method,
    ModelSettings,
    Rule,
    Settings,
    TrainSettings,
)

__all__ = [
    "EXCHANGING",
    "FEWEST",
    "GENRES",
    "OF_SAMPLES",
    "RESIDUAL_STEP",
    "SENDING",
    "TOO_FEW",
    "UNTRAINED",
    "AssistSettings",
    "DomainSettings",
    "EtaRule",
    "Feedback",
    "Method",
    "ModelSettings",
    "ProtectSettings",
    "Rule",
    "Settings",
    "TrainSettings",
    "covers",
]
