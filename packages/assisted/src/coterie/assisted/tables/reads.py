"""Which settings a method reads: runs that differ in others only are one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.assisted.baselines import UNTRAINED
from coterie.assisted.readings import resolve
from coterie.assisted.settings.run import Settings
from coterie.core.settings.schema import changed, values_of

_TRAINING = {"train.epochs", "train.batch_rows", "train.lr", "train.weight_decay", "train.clip"}
_FACTORS = _TRAINING | {"model.code", "model.sizes"}
_OF_MODEL = {
    "mf": _FACTORS | {"model.biases"},
    "mlp": _FACTORS,
    "ncf": _FACTORS,
    "aae": _FACTORS
    | {"model.hidden", "model.dropout", "model.inputs", "train.hide", "train.own_targets"},
}
_NEVER_READ = {"compare"}
_SECTIONS = ("model.", "train.", "assist.")


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what a run does not read to one value.

    Rankings are of all organisations, as the paper's.

    Example:
        >>> one = essential(Settings(method="joint"))
        >>> one.data.domains, one.evaluation
        ('uniform', 'pooled')
    """
    settings = resolve(replace(settings, evaluation="pooled"))
    if settings.model.name == "rate":  # columns are nobody else's, so it is the same alone
        settings = replace(settings, method="joint")
    usual = values_of(resolve(Settings()))
    unread = {name: usual[name] for name in _unread(settings, set(usual))}
    return changed(settings, unread | _fixed(settings))


def _unread(settings: Settings, known: set[str]) -> set[str]:
    """Name the settings that have no effect on a run."""
    model, method = settings.model.name, settings.method
    read = {"model.name"} | _OF_MODEL.get(model, set())
    if method == "mtal":
        rules = {settings.assist.eta_rule, settings.assist.weights}
        read |= {name for name in known if name.startswith("assist.")}
        read -= set() if "lbfgs" in rules else {"assist.lbfgs_lr"}
    if settings.reading == "released":
        read.add("train.batch_rows")  # of the averages
    found = {name for name in known if name.startswith(_SECTIONS)} - read
    found |= _NEVER_READ & known
    if method != "mtal":
        found |= {"data.common"} | {name for name in known if name.startswith("privacy.")}
    if method == "joint":
        found.add("data.count")
    if model in UNTRAINED:
        found |= {"data.side", "patience"}
    if settings.reading == "released":
        found.add("data.valid")
    return found


def _fixed(settings: Settings) -> dict[str, Any]:
    """Give values of what is not read and has no usual one that fits."""
    found: dict[str, Any] = {}
    if settings.method == "joint":
        found["data.domains"] = "uniform"
    if settings.model.name in UNTRAINED:
        found["rounds"] = 1
    starts = settings.method == "mtal" or settings.model.name == "base"
    if settings.data.feedback == "explicit" or not starts:
        found["start"] = "mean"
    return found
