"""The methods that can be run, PF-MSMTrec itself and the core's, and their clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.methods import registry
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.registry import METHODS
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.card import Card
from coterie.core.settings.schema import within
from coterie.core.tensors.device import on_host
from coterie.msmt.client import PFClient
from coterie.msmt.data.task import Schema
from coterie.msmt.ensemble.client import EnsembleClient
from coterie.msmt.models.base import MultiTask
from coterie.msmt.models.make import network
from coterie.msmt.models.template import TemplateMMoE
from coterie.msmt.readings import idle, resolve
from coterie.msmt.settings import Settings, TrainSettings

_GLOBAL = ("fedavg", "fedprox", "central")
"""Methods whose answer is one model for all scenarios; of the others it is each one's own."""
_SHARING = ("fedavg", "fedprox", "ditto", "fedamp")
OF_THIS_PAPER = ("pf-msmtrec", "ensemble")
"""Methods whose halves are here; those of the others are the core's."""


def client_half(settings: Settings, build: Callable[[], MultiTask]) -> ModelClient[Any]:
    """Make the client of a method, by settings with the reading resolved.

    Raises:
        UserError: settings of the method do not go together, or it cannot train this network.
    """
    if settings.method == "pf-msmtrec":
        module = cast(TemplateMMoE, on_host(build))
        return PFClient(module, settings_of(settings), settings.pf)
    if settings.method == "ensemble":
        return EnsembleClient(on_host(build), settings_of(settings), settings.ensemble)
    return registry.client_half(settings.method, build, settings_of(settings))


def make_client(card: Card, folder: Path | None = None) -> ModelClient[Any]:
    """Make the client half from the public card alone."""
    settings = resolve(card.read(Settings))
    return client_half(settings, network(settings, Schema.from_plain(card.public)))


def settings_of(settings: Settings, lengths: Tensor | None = None) -> FedAvgSettings:
    """What a method takes; ``lengths`` as `registry.settings_of` has them.

    Raises:
        UserError: they do not go together; settings are named by their whole keys.
    """
    try:
        if settings.method in OF_THIS_PAPER:
            return FedAvgSettings(**training(settings))
        return registry.settings_of(settings.method, training(settings), settings, lengths)
    except UserError as error:
        raise UserError(within("train", TrainSettings, str(error))) from None


def training(settings: Settings) -> dict[str, Any]:
    """What all methods have in common, as arguments of their settings."""
    train = asdict(settings.train)
    fraction = train.pop("participation")
    if settings.method not in _SHARING:
        train.pop("share")
    chosen_by = ("global",) if settings.method in _GLOBAL else ("personal",)
    return {**train, "fraction": fraction, "rounds": settings.rounds, "chosen_by": chosen_by}


def remarks(settings: Settings) -> list[str]:
    """Say which general settings a method does not look at, and what its ledger does not count."""
    found, usual = [], TrainSettings()
    if settings.train.share and settings.method not in _SHARING:
        found.append(f"train.share has no effect on {settings.method}")
    if settings.method == "pf-msmtrec":
        found += [
            f"{name} has no effect beside the other settings of pf" for name in idle(settings)
        ]
        if settings.train.weighting != usual.weighting:
            found.append("train.weighting has no effect on pf-msmtrec: it has pf.weighting")
        return found
    if settings.method == "ensemble":
        return found
    for name in METHODS[settings.method].unread:
        key = {"fraction": "participation"}.get(name, name)
        if getattr(settings.train, key) != getattr(usual, key):
            found.append(f"train.{key} has no effect on {settings.method}")
    if settings.method == "central":
        found.append("the server holds all training samples: their upload is not in the ledger")
    return found
