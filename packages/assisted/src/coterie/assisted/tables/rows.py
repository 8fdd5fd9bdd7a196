"""The rows of Table 1: what each is called, and the settings that it is run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from coterie.assisted.readings import AS_PRINTED, MODELS, baseline, unprotected
from coterie.assisted.settings import UNTRAINED, ModelSettings, Settings
from coterie.assisted.tables.study import Cell
from coterie.core.settings.schema import changed, values_of

Method = Literal["alone", "joint"]
_APART: tuple[Method, ...] = ("joint", "alone")
OWN = "mtal"
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mtal-validation": ("MTAL, η by validation (ours)", {"assist.eta_rule": "validation"}),
    "mtal-bias-validation": (
        "MTAL from own bias models, η by validation (ours)",
        {"start": "bias", "assist.eta_rule": "validation"},
    ),
}
"""Options of ours that are better on validation cells (docs/assisted.md): labels and settings."""
_CONFIGURED, BEST, SUMS = "mtal-configured", "best", "sums"
OURS = {name: label for name, (label, _) in VARIANTS.items()} | {
    _CONFIGURED: "MTAL, as configured (ours)",
    SUMS: "--variant sums (ours)",
    BEST: "--variant best (ours)",
}
_JOINT_MTAL = "joint-mtal"
ORDER = (
    *(f"joint-{model}" for model in MODELS if model != "rate"),
    "joint-autorec",
    _JOINT_MTAL,
    *(f"alone-{model}" for model in MODELS if model != "rate"),
    "alone-autorec",
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
            if model == "rate" and not cell.higher:  # there are no labels
                continue
            if model == "rate" and method == "alone":  # the same as joint
                continue
            name = f"{method}-{model}" if model != "rate" else model
            made = baseline(plain, method, model)
            found.append(Row(name, _label(method, model, made), made, method, model))
    return found


def ceilings(cell: Cell, settings: Settings, best: Settings) -> list[Row]:
    """Give what is reached by one who holds all data, or only its own, with the means of ours.

    Of joint data one can make virtual organisations that have items in common, for MTAL; a ranking
    is then of an item, so there is such a row for ratings only.

    Args:
        cell: where.
        settings: of MTAL.
        best: of ``--variant best``, as which AutoRec is trained.
    """
    found = []
    for method in _APART:
        made = changed(
            unprotected(best), {"method": method, "model.name": "autorec", **_own(method, cell)}
        )
        of = "items and users" if made.model.samples == "both" else "items"
        label = f"{method.capitalize()} AutoRec of {of}, {made.model.members} averaged (ours)"
        found.append(Row(f"{method}-autorec", label, made, method, "autorec"))
    if not cell.higher:
        whole = {"data.align": "item", "data.domains": "uniform", "data.common": 1.0}
        # One who holds all data hides nothing from itself.
        parts = changed(unprotected(as_printed(settings)), whole)
        label = f"Joint {_mtal(parts)}, {parts.data.n_domains} virtual parts (ours)"
        found.append(Row(_JOINT_MTAL, label, parts, "joint", OWN))
    return found


def _own(method: Method, cell: Cell) -> dict[str, Any]:
    """Say in what AutoRec without an exchange is not as ``--variant best``.

    Chosen for who is alone by its own validation (docs/assisted.md): where users are in common, it
    begins best with its bias model, as it has too few ratings of a user to learn a mean from. The
    joint row is one model and not one an organisation, so memory does not limit its members.
    """
    if method == "joint":
        return {"model.samples": "items", "model.members": ModelSettings.members}
    return {"model.samples": "both"} | ({"start": "bias"} if cell.align == "user" else {})


def own_rows(settings: Settings, more: Mapping[str, Settings] = MappingProxyType({})) -> list[Row]:
    """Give MTAL as printed, with the rate of the settings, and with options of ours.

    Args:
        settings: of MTAL.
        more: settings of the variants `BEST` and `SUMS`.
    """
    plain = as_printed(settings)
    variants = {OWN: plain}
    variants |= {name: changed(plain, more) for name, (_, more) in VARIANTS.items()}
    if settings not in variants.values():
        variants[_CONFIGURED] = settings
    variants |= more
    labels = {OWN: "MTAL", **OURS}
    return [
        Row(name, labels[name].replace("MTAL", _mtal(settings)), variant)
        for name, variant in variants.items()
    ]


def as_printed(settings: Settings) -> Settings:
    """Leave options of ours out."""
    start = None if settings.start == "bias" else settings.start
    return changed(settings, {**AS_PRINTED, "start": start})


def released_rows(settings: Settings) -> list[Row]:
    """Give MTAL with each of the rates of the public code."""
    plain = changed(as_printed(settings), {"assist.weights": "constant"})
    return [
        Row(name, _mtal(settings), rated(plain, rule, eta)) for name, (rule, eta) in RATES.items()
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


def _mtal(settings: Settings) -> str:
    return "MTAL_s" if settings.data.side else "MTAL"


def _label(method: Method, model: str, settings: Settings) -> str:
    if model == "rate":
        return f"{MODELS[model]}, joint or alone"
    side = "_s" if settings.data.side and model not in UNTRAINED else ""
    return f"{method.capitalize()} {MODELS[model]}{side}"
