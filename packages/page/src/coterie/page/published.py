"""The paper's tables, read from published.yaml, and what they were measured on. Torch-free."""

from __future__ import annotations

from typing import Any

from coterie.core.registry.data_sets import published
from coterie.page.settings import Settings, TaskSettings
from coterie.page.tasks import OF_TASK

TABLES: dict[str, Any] = published("coterie.page")
CLIENTS = 100
"""Of every task (section 5.1)."""


def printed(*path: str) -> Any:
    """Give what the paper prints at a place of its tables; None where it has nothing.

    Example:
        >>> printed("table2", "synthetic", "page"), printed("table2", "synthetic", "local")
        (891, None)
    """
    found: Any = TABLES
    for key in path:
        found = found.get(key, {})
    return found or None


def accuracies(*path: str) -> tuple[float | None, float | None]:
    """Give the paper's global and local accuracy as shares; in Table 1 each has its spread.

    Example:
        >>> accuracies("table1", "synthetic", "page"), accuracies("table1", "synthetic", "local")
        ((0.9267, 0.9624), (None, None))
    """
    row = printed(*path)
    if row is None:
        return None, None
    local = row[2] if path[0] == "table1" else row[1]
    return round(row[0] / 100, 6), round(local / 100, 6)


def reference(task: str, method: str) -> dict[str, float]:
    """Name the accuracies of Table 1 as a run names its own; empty where there are none."""
    names = ("test/server_accuracy", "test/personal_accuracy")
    pairs = zip(names, accuracies("table1", task, method), strict=True)
    return {name: share for name, share in pairs if share is not None}


def departures(settings: Settings) -> list[str]:
    """Say in what a run's clients, data and network are not the paper's.

    Example:
        >>> departures(Settings()), departures(Settings(data=TaskSettings(clients=5)))
        ([], ['5 clients (100)'])
    """
    data, usual = settings.data, TaskSettings()
    network = OF_TASK.get(data.name)
    found = []
    if settings.model.name not in (None, network):
        found.append(f"network {settings.model.name} ({network})")
    if data.clients not in (None, CLIENTS):
        found.append(f"{data.clients} clients ({CLIENTS})")
    if data.samples is not None:
        found.append(f"at most {data.samples} samples (all)")
    for name in ("partition", "label_skew", "quantity_skew", "feature_skew"):
        own, theirs = getattr(data, name), getattr(usual, name)
        if own != theirs:
            found.append(f"data.{name} {own} ({theirs})")
    return found
