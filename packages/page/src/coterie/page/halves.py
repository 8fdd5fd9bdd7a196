"""The servers of the methods, and both halves together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.methods import registry
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_server import ModelServer, ServerSamples
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.card import Card
from coterie.core.wire.codec import Header, decode, encode
from coterie.page.algorithm import PageServer
from coterie.page.data.task import Form, Task
from coterie.page.decoupled.algorithm import DecoupledServer
from coterie.page.methods import client_half, settings_of, training
from coterie.page.models.make import network
from coterie.page.readings import resolve
from coterie.page.settings.run import Settings

SAMPLES = "server-samples.safetensors"
"""Where a server that runs apart keeps D_CS, as `coterie.core.wire.codec.encode` writes it."""


def server_half(
    settings: Settings,
    build: Callable[[], nn.Module],
    n_clients: int,
    samples: ServerSamples,
    pooled: SampleData | None = None,
) -> ModelServer[Any]:
    """Make the server of a method; ``pooled`` is what all clients train on, if it must know.

    Raises:
        UserError: settings of the method do not go together, or it cannot train this network.
    """
    if settings.method == "page":
        plain = FedAvgSettings(**training(settings))
        half = DecoupledServer if settings.reading == "decoupled" else PageServer
        return half(build, plain, settings, n_clients, samples)
    return registry.server_half(settings.method, build, settings_of(settings), samples, pooled)


def halves(
    settings: Settings, build: Callable[[], nn.Module], task: Task
) -> tuple[ModelServer[Any], ModelClient[Any]]:
    """Make server and client for a task that is all in this process.

    Raises:
        UserError: as `server_half`, or settings do not suit the clients' numbers of samples.
    """
    if settings.method != "page":
        settings_of(settings, task.clients.lengths)
    samples = ServerSamples(task.server_valid, task.server_test)
    server = server_half(settings, build, len(task.clients), samples, task.clients.train)
    return server, client_half(settings, build)


def write_samples(task: Task, folder: Path) -> None:
    """Write the server's own samples into its folder."""
    samples = ServerSamples(task.server_valid, task.server_test)
    (folder / SAMPLES).write_bytes(encode(samples, Header("samples", ())))


def make_server(card: Card, ids: Tensor, folder: Path) -> ModelServer[Any]:
    """Make the server half from the card, ids ``(N,)``, and a folder with the file `SAMPLES`."""
    settings = resolve(card.read(Settings))
    build = network(settings, Form.from_plain(card.public))
    samples: ServerSamples = decode((folder / SAMPLES).read_bytes(), ServerSamples)[0]
    return server_half(settings, build, ids.numel(), samples)
