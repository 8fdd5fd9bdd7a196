"""The numbers of the authors' slides, from published.yaml, and what they were measured on.

Torch-free.
"""

from __future__ import annotations

from typing import Any

from coterie.assisted.readings import unread
from coterie.assisted.settings import UNTRAINED, Settings
from coterie.core.registry.data_sets import published
from coterie.core.settings.schema import values_of

NUMBERS: dict[str, Any] = published("coterie.assisted")
EPOCHS, ROUNDS = 200, 10
PARTS = 8
"""K of the partition uniform."""
_BATCH_ROWS = {"ml-100k": 100, "ml-1m": 500, "ml-10m": 5000}
_MOST_ITEMS = 1000
"""Rows of a batch, at most, where these are items."""
_FREE = {
    "assist.eta",
    "assist.eta_rule",
    "assist.weights",
    "assist.lbfgs_lr",
    "data.threshold",
    "data.valid",
    "model.name",
    "model.biases",
    "train.epochs",
    "train.batch_rows",
}
"""What the slides' number is the best of, what readings differ in, what is told otherwise."""
_CHECKED = (
    "data.min_interactions",
    "data.common",
    "data.test",
    "data.side",
    "model.",
    "train.",
    "assist.",
    "protect.",
    "privacy.",
)


def printed(data: str, feedback: str, align: str, method: str, model: str) -> float | None:
    """Give RMSE of explicit or MAP of implicit feedback; None where the slides have none.

    Example:
        >>> printed("ml-100k", "explicit", "user", "mtal", "aae")
        0.945
    """
    found: Any = NUMBERS["table"]
    for key in (data, feedback, align, method, model):
        found = found.get(key, {})
    return found or None


def curve(data: str, feedback: str, align: str, setting: str) -> dict[str, float]:
    """Give what could be read of a curve over rounds, and where it starts; perhaps nothing.

    Example:
        >>> curve("ml-100k", "explicit", "item", "eta 0.3")
        {'start': 1.04, 'end': 0.912, 'best': 0.883, 'best_round': 3}
    """
    found: Any = NUMBERS["curves"]
    for key in (data, feedback, align):
        found = found.get(key, {})
    start = {"start": found["base"]} if "base" in found else {}
    return {**start, **found.get(setting, {})}


def has_cell(align: str, domains: str) -> bool:
    """Whether the slides have numbers of organisations of this kind."""
    return (align, domains) in {("user", "genre"), ("item", "uniform"), ("user", "source")}


def reference(settings: Settings) -> dict[str, float]:
    """Name the slides' number as a run names its own, where the run's settings are theirs.

    MAP is of all that is held out of a row: the number is for pooled evaluation alone.

    Example:
        >>> from coterie.assisted.settings import DomainSettings
        >>> reference(Settings(data=DomainSettings(name="ml-100k")))
        {'test/rmse': 0.945}
    """
    data, explicit = settings.data, settings.data.feedback == "explicit"
    known = settings.method == "joint" or has_cell(data.align, data.domains)
    if not known or departures(settings) or not (explicit or settings.evaluation == "pooled"):
        return {}
    place = data.name, data.feedback, data.align
    found = printed(*place, settings.method, settings.model.name)
    return {} if found is None else {"test/rmse" if explicit else "test/map@10": found}


def departures(settings: Settings) -> list[str]:
    """Say in what a run's data, networks and training are not the slides', theirs in brackets.

    Example:
        >>> departures(Settings(rounds=2))
        ['2 rounds of 20 epochs (10 of 20)']
    """
    own, theirs, vain = values_of(settings), values_of(Settings()), tuple(unread(settings))
    found = _of_training(settings) if settings.model.name not in UNTRAINED else []
    base = settings.model.name == "base" and settings.data.feedback == "implicit"
    if base and settings.start == "smoothed":
        found.append("a smoothed share of positives (the share itself)")
    parts = settings.method != "joint" and settings.data.domains == "uniform"
    if parts and settings.data.n_domains != PARTS:
        found.append(f"data.count {settings.data.n_domains} ({PARTS})")
    return found + [
        f"{name} {own[name]} ({theirs[name]})"
        for name in own
        if name.startswith(_CHECKED) and name not in _FREE and not name.startswith(vain)
        if own[name] != theirs[name]
    ]


def _of_training(settings: Settings) -> list[str]:
    """Say in what the length of training and the batches are others."""
    found, train = [], settings.train
    as_long = settings.rounds * train.epochs == EPOCHS
    if not as_long or (settings.method == "mtal" and settings.rounds != ROUNDS):
        found.append(f"{settings.rounds} rounds of {train.epochs} epochs (10 of 20)")
    batch = batch_rows(settings)
    if batch and train.batch_rows != batch:
        found.append(f"train.batch_rows {train.batch_rows} ({batch})")
    return found


def batch_rows(settings: Settings) -> int | None:
    """Rows of a batch in Table 6 of the paper; None for data that it does not have."""
    found = _BATCH_ROWS.get(settings.data.name)
    if found is None or settings.data.align == "user":
        return found
    return min(found, _MOST_ITEMS)
