"""The rows of Table 1: which methods there are, with which settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.assisted.baselines import AS_PRINTED, MODELS, baseline
from coterie.assisted.settings.run import UNTRAINED, Settings
from coterie.assisted.tables.cells import Cell
from coterie.core.settings.schema import changed, values_of

Method = Literal["alone", "joint"]
_APART: tuple[Method, ...] = ("joint", "alone")
OWN = "mtal"
LEAVE_OUT = {"assist.own": "leave-out"}
HIDDEN = {"train.hide": 0.5, "train.own_targets": "hidden"}
OURS = {
    "mtal-leave-out": "MTAL, own fit left out (ours)",
    "mtal-hidden": "MTAL, half of the inputs hidden (ours)",
    "mtal-configured": "MTAL, as configured (ours)",
}
ORDER = (
    *(f"joint-{model}" for model in MODELS if model != "rate"),
    *(f"alone-{model}" for model in MODELS if model != "rate"),
    "rate",
    OWN,
    *OURS,
)
"""Names of all rows, in the order of the table."""
RATES = {"η 0.1": ("constant", 0.1), "η 0.3": ("constant", 0.3), "η optimised": ("lbfgs", 0.1)}
"""Of the public code: rule, and η or where its search begins."""


@dataclass(frozen=True)
class Row:
    """A method of Table 1 in a cell.

    Attributes:
        name: for programs.
        label: for people.
        settings: how it is run.
        method: of the slides.
        model: of the slides.
    """

    name: str
    label: str
    settings: Settings
    method: str = OWN
    model: str = "aae"


def baselines(cell: Cell, settings: Settings) -> list[Row]:
    """Give every method that MTAL is compared with in a cell.

    The base model of the slides is a share of positives; ours, from which MTAL starts, is the
    smoothed rate, a row of its own.
    """
    plain = changed(settings, {"start": "mean"})
    found = []
    for method in _APART:
        for model in MODELS:
            if model in UNTRAINED and model not in ("base", cell.untrained):
                continue
            if model == "rate" and method == "alone":  # the same as joint
                continue
            name = f"{method}-{model}" if model != "rate" else model
            made = baseline(plain, method, model)
            found.append(Row(name, _label(method, model, made), made, method, model))
    return found


def own_rows(settings: Settings) -> list[Row]:
    """Give MTAL as printed, with the rate of the settings, and with options of ours."""
    plain = changed(settings, AS_PRINTED)
    variants = {
        OWN: plain,
        "mtal-leave-out": changed(plain, LEAVE_OUT),
        "mtal-hidden": changed(plain, HIDDEN),
    }
    if settings not in variants.values():
        variants["mtal-configured"] = settings
    side = "_s" if settings.data.side else ""
    labels = {OWN: "MTAL", **OURS}
    return [
        Row(name, labels[name].replace("MTAL", f"MTAL{side}"), variant)
        for name, variant in variants.items()
    ]


def released_rows(settings: Settings) -> list[Row]:
    """Give MTAL with each of the rates of the public code."""
    plain = changed(settings, {**AS_PRINTED, "assist.weights": "constant"})
    return [
        Row(name, f"MTAL{'_s' if settings.data.side else ''}", rated(plain, rule, eta))
        for name, (rule, eta) in RATES.items()
    ]


def rated(settings: Settings, rule: str, eta: float) -> Settings:
    """Choose the rate η of MTAL."""
    return changed(settings, {"assist.eta_rule": rule, "assist.eta": eta})


def rate_of(settings: Settings) -> str:
    """Say which rate and weights settings have.

    Example:
        >>> rate_of(Settings())
        'η 0.3'
    """
    own = values_of(settings)
    rule, weights = own["assist.eta_rule"], own["assist.weights"]
    text = f"η {own['assist.eta']:g}" if rule == "constant" else f"η by {rule}"
    return text if weights == "constant" else f"{text}, w by {weights}"


def _label(method: Method, model: str, settings: Settings) -> str:
    if model == "rate":
        return f"{MODELS[model]}, joint or alone"
    side = "_s" if settings.data.side and model not in UNTRAINED else ""
    return f"{method.capitalize()} {MODELS[model]}{side}"
