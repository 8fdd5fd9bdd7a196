"""The servers of the methods, and both halves together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.methods import registry
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_server import ModelServer
from coterie.core.methods.reference.central import CentralServer
from coterie.core.protocol.card import Card
from coterie.msmt.algorithm import PFServer
from coterie.msmt.data.schema import Schema
from coterie.msmt.data.task import Task
from coterie.msmt.methods import client_half, settings_of
from coterie.msmt.models.base import MultiTask
from coterie.msmt.models.make import network
from coterie.msmt.models.template import TemplateMMoE
from coterie.msmt.readings import resolve
from coterie.msmt.settings.run import Settings


def server_half(
    settings: Settings, build: Callable[[], MultiTask], pooled: SampleData | None = None
) -> ModelServer[Any]:
    """Make the server of a method; ``pooled`` is what all scenarios train on, if it must know.

    Raises:
        UserError: settings of the method do not go together, or it cannot train this network.
    """
    if settings.method == "pf-msmtrec":
        template = cast(Callable[[], TemplateMMoE], build)
        return PFServer(template, settings_of(settings), settings.pf)
    return registry.server_half(settings.method, build, settings_of(settings), pooled=pooled)


def halves(
    settings: Settings, build: Callable[[], MultiTask], task: Task
) -> tuple[ModelServer[Any], ModelClient[Any]]:
    """Make server and client for a task that is all in this process.

    Raises:
        UserError: as `server_half`, or settings do not suit the scenarios' numbers of samples.
    """
    settings_of(settings, task.clients.lengths)
    client, server = client_half(settings, build), server_half(settings, build, task.clients.train)
    if isinstance(server, CentralServer):
        server.local.check(server.train)
    else:
        client.local.check(task.clients.train)
    return server, client


def make_server(card: Card, ids: Tensor, folder: Path | None) -> ModelServer[Any]:
    """Make the server half from the card."""
    settings = resolve(card.read(Settings))
    return server_half(settings, network(settings, Schema.from_plain(card.public)))
