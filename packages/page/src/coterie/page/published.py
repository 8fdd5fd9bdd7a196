"""The paper's tables, read from published.yaml, and what they were measured on. Torch-free."""

from __future__ import annotations

from typing import Any

from coterie.core.registry.published import published
from coterie.page.settings.networks import OF_TASK
from coterie.page.settings.run import Settings, TaskSettings

TABLES: dict[str, Any] = published("coterie.page")
CLIENTS = 100
"""Of every task (section 5.1)."""


def reference(task: str, method: str) -> dict[str, float]:
    """Give the paper's global and local accuracy by the names of our measurements.

    Example:
        >>> reference("synthetic", "page")
        {'test/server_accuracy': 0.9267, 'test/personal_accuracy': 0.9624}
    """
    printed = TABLES["table1"].get(task, {}).get(method)
    if printed is None:
        return {}
    return {
        "test/server_accuracy": round(printed[0] / 100, 6),
        "test/personal_accuracy": round(printed[2] / 100, 6),
    }


def convergence_round(task: str, method: str) -> int | None:
    """Give the paper's round of convergence (Table 2).

    Example:
        >>> convergence_round("synthetic", "page"), convergence_round("synthetic", "local")
        (891, None)
    """
    return TABLES["table2"].get(task, {}).get(method)


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
