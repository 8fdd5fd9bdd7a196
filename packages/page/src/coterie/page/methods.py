"""The methods that can be run, PAGE itself and the core's on the same task, and their clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.methods import registry
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.registry import METHODS
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.card import Card
from coterie.core.settings.schema import within
from coterie.core.tensors.device import on_host
from coterie.page.client import DecoupledClient, PageClient
from coterie.page.data.task import Form
from coterie.page.models import network
from coterie.page.readings import resolve
from coterie.page.settings import Settings, TrainSettings


def client_half(settings: Settings, build: Callable[[], nn.Module]) -> ModelClient[Any]:
    """Make the client of a method, by settings with the reading resolved.

    Raises:
        UserError: settings of the method do not go together, or it cannot train this network.
    """
    if settings.method == "page":
        half = DecoupledClient if settings.reading == "decoupled" else PageClient
        return half(on_host(build), FedAvgSettings(**training(settings)), settings)
    return registry.client_half(settings.method, build, settings_of(settings))


def make_client(card: Card, folder: Path | None = None) -> ModelClient[Any]:
    """Make the client half from the public card alone."""
    settings = resolve(card.read(Settings))
    return client_half(settings, network(settings, Form.from_plain(card.public)))


def settings_of(settings: Settings, lengths: Tensor | None = None) -> FedAvgSettings:
    """What a method of the core takes; ``lengths`` as `registry.settings_of` has them.

    Raises:
        UserError: they do not go together; settings are named by their whole keys.
    """
    try:
        return registry.settings_of(settings.method, training(settings), settings, lengths)
    except UserError as error:
        raise UserError(within("train", TrainSettings, str(error))) from None


def remarks(settings: Settings) -> list[str]:
    """Say which general settings a method does not look at, and what its ledger does not count."""
    if settings.method == "page":
        return []
    method, common = METHODS[settings.method], training(settings)
    found = [
        f"{settings.method} takes {method.section}.{name} ({value}) in place of train.{name}"
        for name, value in method.own(settings).items()
        if name in common
    ]
    usual, keys = training(Settings()), {"fraction": "participation"}
    found += [
        f"train.{keys.get(name, name)} has no effect on {settings.method}"
        for name in method.unread
        if common[name] != usual[name]
    ]
    if settings.method == "central":
        found.append("the server holds all training samples: their upload is not in the ledger")
    return found


def training(settings: Settings) -> dict[str, Any]:
    """What all methods have in common, as arguments of their settings."""
    train = asdict(settings.train)
    fraction = train.pop("participation")
    shared = {"rounds": settings.rounds, "branch": settings.branch}
    return {**train, "fraction": fraction, **shared}
