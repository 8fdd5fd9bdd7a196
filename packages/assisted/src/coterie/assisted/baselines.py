"""The methods that MTAL is compared with: what they are called, how long they train. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from coterie.assisted.settings.protect import ProtectSettings
from coterie.assisted.settings.run import UNTRAINED, Settings
from coterie.core.settings.schema import changed
from coterie.core.settings.sections import PrivacySettings

MODELS: Mapping[str, str] = {
    "base": "Base",
    "bias": "bias model",
    "rate": "smoothed rate",
    "mf": "MF",
    "mlp": "MLP",
    "ncf": "NCF",
    "aae": "AAE",
}
"""Models of the methods alone and joint -> as papers write them."""
PATIENCE = 30
"""Epochs without a better validation before a baseline ends; it has none in other readings."""
AS_PRINTED: Mapping[str, Any] = {
    "model.inputs": "raw",
    "train.hide": 0.0,
    "train.own_targets": "all",
    "assist.own": "use",
}
"""What MTAL and the autoencoders of the paper are, where settings choose options of ours."""


def baseline(settings: Settings, method: Literal["alone", "joint"], model: str) -> Settings:
    """Settings of a method that a run of MTAL is compared with.

    It trains for as many epochs as MTAL in all its rounds, and every epoch is measured: with many
    of them an autoencoder alone learns its own input by heart.

    Args:
        settings: of the run of MTAL.
        method: whether organisations are apart or one.
        model: of `MODELS`.

    Example:
        >>> found = baseline(Settings(rounds=10), "alone", "aae")
        >>> found.rounds, found.train.epochs, found.patience
        (200, 1, 30)
    """
    # Nothing is sent that these cover.
    settings = replace(settings, privacy=PrivacySettings(), protect=ProtectSettings())
    epochs = 1 if model in UNTRAINED else settings.rounds * settings.train.epochs
    chosen = {"method": method, "model.name": model, "rounds": epochs, "train.epochs": 1}
    if settings.reading == "recommended":
        chosen["patience"] = PATIENCE
    return changed(settings, {**AS_PRINTED, **chosen})
