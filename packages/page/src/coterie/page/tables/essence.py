"""What the numbers of a run depend on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from coterie.core.methods.registry import METHODS
from coterie.page.data.task import Task
from coterie.page.readings import resolve
from coterie.page.settings.run import Settings
from coterie.page.settings.tasks import TASKS

_OF_PAGE = ("game", "client_agent", "server_agent", "certify", "certificate")


def essential(settings: Settings) -> Settings:
    """Fill the reading's choices, and set what the method does not read to one value.

    Example:
        >>> essential(Settings(method="fedavg", reading="literal")).reading
        'recommended'
    """
    own = METHODS[settings.method].section if settings.method in METHODS else None
    unread = {method.section for method in METHODS.values()} - {own, None}
    if settings.method in METHODS:
        unread |= set(_OF_PAGE)
        settings = replace(settings, reading="recommended")
    elif not settings.certify:
        unread.add("certificate")
    elif not settings.has_leaders:  # nobody is left to test
        unread |= {"certify", "certificate"}
    given: dict[str, Any] = {str(name): getattr(Settings(), str(name)) for name in unread}
    return resolve(replace(settings, **given))


def digest(task: Task) -> str:
    """Hash what clients and server hold, where it was read; what is drawn follows from settings."""
    entry = next((entry for entry in TASKS if entry.name == task.name), None)
    if entry is None or not entry.files:
        return ""
    clients = task.clients
    parts = [part.samples for part in (clients.train, clients.valid, clients.test)]
    found = hashlib.sha256()
    for samples in (*parts, task.server_valid, task.server_test):
        for name in sorted(samples):
            found.update(samples[name].contiguous().numpy().tobytes())
    return found.hexdigest()
