"""The settings of a run as the paper's readings have them, and of its baselines. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from coterie.assisted.settings import (
    EXCHANGING,
    OF_SAMPLES,
    UNTRAINED,
    ProtectSettings,
    Settings,
    covers,
)
from coterie.core.settings.schema import changed, filled, values_of
from coterie.core.settings.sections import PrivacySettings

_START = {"recommended": "smoothed", "literal": "logit", "released": "mean"}


def choices(settings: Settings) -> dict[str, Any]:
    """Give what ``settings.reading`` chooses where the settings leave it open.

    - recommended: the best round is chosen on validation cells, RMSE and rankings are of all
      cells and rows, and the base model of implicit feedback is the logit of a smoothed rate.
    - literal: as printed: F⁰ = E(R), a share of positives, whose logit the loss takes.
    - released: as the public code does: F⁰ is the share itself, taken for a logit; ratings of 3.5
      are positive; there is no validation set, the best round is that of the test; an organisation
      that protects its residuals fits the protected ones itself. MF adds biases to every coordinate
      of its vectors, and its constant starts at 0, far from any rating.
    """
    as_printed = settings.reading != "recommended"
    biases = "broadcast" if settings.reading == "released" else "additive"
    found: dict[str, Any] = {
        "start": _START[settings.reading],
        "evaluation": "pooled" if as_printed else "local",
        "model": {"biases": biases},
    }
    once = settings.method == "residuals"
    if settings.protect.residuals != "none" or (once and covers(settings.privacy)):
        own = "protected" if settings.reading == "released" else "clean"
        found["protect"] = {"own": own}
    return found


def resolve(settings: Settings) -> Settings:
    """Fill what is open; what the user chose stays, but that what trains nothing has one round.

    Example:
        >>> resolve(Settings(reading="released")).start
        'mean'
    """
    found = filled(settings, choices(settings))
    return changed(found, {"rounds": 1}) if found.model.name in UNTRAINED else found


def idle(settings: Settings) -> list[str]:
    """Name what was set and has no effect on the method and its model.

    A ``start`` that gives the same F⁰ as the reading's is not named: a variant may have another.

    Args:
        settings: resolved.

    Example:
        >>> from coterie.assisted.settings import AssistSettings
        >>> idle(resolve(Settings(method="alone", assist=AssistSettings(eta=0.1))))
        ['assist.eta']
    """
    own = values_of(settings)
    usual = values_of(resolve(Settings(reading=settings.reading)))
    vain = [name for name in own if name.startswith(tuple(_ignored(settings)))]
    return [name for name in vain if own[name] != usual[name]]


def unread(settings: Settings) -> list[str]:
    """Give what does not matter to the method and its model, as beginnings of settings' names.

    That is what they ignore, and ``start`` where F⁰ is the mean of a column by each choice at hand.

    Args:
        settings: resolved.
    """
    ratings_alone = settings.data.feedback == "explicit" and not settings.objectives
    by_column = ratings_alone and settings.start not in ("constant", "bias")
    return [*_ignored(settings), *(["start"] if by_column else [])]


def _ignored(settings: Settings) -> list[str]:
    method, model, found = settings.method, settings.model.name, []
    if method != "mtal":
        found += ["assist."]
    if method not in EXCHANGING:
        found += ["data.common"]
    if method == "sums":
        found += ["train.epochs", "train.batch_rows"]
    if method == "joint":
        found += ["data.domains", "data.count"]
    if model != "mf":
        found += ["model.biases"]
    if model != "aae":
        found += ["model.inputs", "train.own_targets"]
    if model not in ("autorec", "blend"):
        found += ["model.members"]
    if model not in ("aae", "autorec", "blend"):
        found += ["model.hidden", "model.dropout", "train.hide"]
    if model not in OF_SAMPLES:
        found += ["model.samples"]
    if model == "gaussian":
        found += ["model.code", "model.sizes", "train.lr", "train.weight_decay"]
        found += ["train.clip", "train.batch_rows"]
    if model not in ("gaussian", "blend"):
        found += ["model.noise", "model.rank"]
    if model in OF_SAMPLES:
        found += ["data.side"]
    if model in UNTRAINED:
        found += ["model.code", "model.sizes", "train.", "data.side", "patience"]
    if not (method == "mtal" or model == "base" or model in OF_SAMPLES):
        found += ["start"]
    return found


# The methods that MTAL is compared with: what they are called, how long they train. Torch-free.

MODELS: Mapping[str, str] = {
    "base": "Base",
    "bias": "bias model",
    "rate": "smoothed rate",
    "mf": "MF",
    "mlp": "MLP",
    "ncf": "NCF",
    "aae": "AAE",
}
SAMPLE_MODELS: Mapping[str, str] = {
    "autorec": "AutoRec",
    "gaussian": "Gaussian",
    "blend": "both models of samples",
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
    settings = unprotected(settings)
    epochs = 1 if model in UNTRAINED else settings.rounds * settings.train.epochs
    chosen = {"method": method, "model.name": model, "rounds": epochs, "train.epochs": 1}
    if settings.reading == "recommended":
        chosen["patience"] = PATIENCE
    return changed(settings, {**AS_PRINTED, **chosen})


def unprotected(settings: Settings) -> Settings:
    """Leave out what covers that which is sent, for those who send nothing."""
    return replace(settings, privacy=PrivacySettings(), protect=ProtectSettings())
