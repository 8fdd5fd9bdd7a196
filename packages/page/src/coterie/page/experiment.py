"""One run of a federation of classifiers: its data, its two halves, its description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.selection import best_of
from coterie.core.methods import registry
from coterie.core.methods.by_trainer import SampleTraining
from coterie.core.methods.kit.evaluation import ACCURACY
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_server import ModelServer, ServerSamples
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.card import Card
from coterie.core.run.checkpoint import BEST
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Experiment as BaseExperiment
from coterie.core.run.experiment import Need
from coterie.core.run.exported import Asked, Exported, Graph
from coterie.core.tensors.device import moved
from coterie.core.tensors.keys import Key
from coterie.core.wire.codec import Header, decode, encode
from coterie.page.algorithm import DecoupledServer, PageServer
from coterie.page.data.make import make_task
from coterie.page.data.task import Form, Task
from coterie.page.game import settled
from coterie.page.methods import client_half, remarks, settings_of, training
from coterie.page.models import network
from coterie.page.paper import CLIENT_COLUMNS
from coterie.page.published import departures, reference
from coterie.page.readings import idle, resolve
from coterie.page.settings import Settings, check_batch

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


ACCURACIES = ("server_accuracy", "global_accuracy", "personal_accuracy")
_CLIENT_BYTES = 1 << 10  # at least: a few samples of 60 features
_EXPERIENCE = 4  # at least: a state, an action, a reward and the next state
_NETWORKS = 8  # actor, critic, a target of each, and what Adam keeps of the first two


class Experiment(BaseExperiment[Settings]):
    """Build everything that `coterie train page` runs.

    Args:
        settings: as the user gave them; the reading's choices are filled in.
    """

    paper = "page"
    tested = BEST

    def __init__(self, settings: Settings) -> None:
        super().__init__(resolve(settings))
        self._certified: list[str] = []  # what `finish` found, for `notes`

    @property
    def source(self) -> str:
        """What the data are, for people."""
        return self.task.name

    @cached_property
    def task(self) -> Task:
        """What clients and server hold."""
        dtype = getattr(torch, self.settings.engine.dtype)
        return make_task(self.settings.data, Key.from_seed(self.settings.seed).fold("data"), dtype)

    @property
    def build(self) -> Callable[[], nn.Module]:
        """Makes the network."""
        return network(self.settings, self.task.form)

    def public(self) -> dict[str, Any]:
        """Give the form of the samples."""
        return asdict(self.task.form)

    def server_files(self, folder: Path) -> None:
        """Write the server's samples D_CS."""
        write_samples(self.task, folder)

    def describe_data(self) -> list[dict[str, Any]]:
        """Count samples and classes of clients and server."""
        task, clients = self.task, self.task.clients
        parts = {"train": clients.train, "valid": clients.valid, "test": clients.test}
        of: dict[str, Callable[..., Tensor]] = {f"{len(clients)} clients": Tensor.sum}
        of |= {"smallest client": Tensor.min, "largest client": Tensor.max}
        rows: list[dict[str, Any]] = [
            {"who": who, **{name: int(count(part.lengths)) for name, part in parts.items()}}
            for who, count in of.items()
        ]
        held = {"valid": len(task.server_valid["y"]), "test": len(task.server_test["y"])}
        return [*rows, {"who": "server", "train": 0, **held}]

    def needs(self) -> list[Need]:
        """Estimate samples, steps and agents of the clients, without drawing the task."""
        settings, train = self.settings, self.settings.train
        clients = settings.data.clients or 1
        found = [
            Need("the samples of the clients", ("data.clients",), memory=clients * _CLIENT_BYTES),
            Need("local training", ("train.epochs",), steps=train.epochs),
        ]
        agents = {"page": ("client_agent", settings.client_agent.ddpg())}
        agents["dap-fl"] = ("dap_fl.agent", settings.dap_fl.agent)
        if settings.method in agents:
            section, agent = agents[settings.method]
            check_batch(section, agent)
            first, second = agent.hidden
            numbers = _NETWORKS * first * second + _EXPERIENCE * agent.capacity
            keys = f"{section}.hidden", f"{section}.capacity", "data.clients"
            memory = clients * numbers * 4
            found.append(Need("the clients' agents", keys, memory, steps=agent.updates))
        if settings.method == "page":
            check_batch("server_agent", settings.server_agent.ddpg())
            server = 4 * _EXPERIENCE * settings.server_agent.ddpg().capacity * clients
            found.append(Need("the server's agent", ("server_agent.capacity",), server))
        return found

    @property
    def blocks(self) -> list[SplitSamples]:
        """The clients' samples: there is one block."""
        return [self.task.clients]

    def halves(self) -> tuple[ModelServer[Any], ModelClient[Any]]:
        """Build both halves; the server's has samples of its own."""
        return halves(self.settings, self.build, moved(self.task, self.device))

    def standalone(self, client: int | None, network: str | None) -> SampleTraining:
        """Give the network on the samples of all clients, or of one."""
        how, task, seed = settings_of(self.settings), self.task, self.settings.seed
        samples = ServerSamples(task.server_valid, task.server_test)
        return SampleTraining(self.build, how, task.clients, seed, client, samples)

    def exported(self, module: FederatedRun, asked: Asked) -> Exported:
        """Give the global model of the tested round, or a client's own.

        Raises:
            UserError: there is no such model or client.
        """
        from coterie.core.export.of_modules import CHECKED, exported_model, graph_of

        def draw(network: nn.Module) -> Graph:
            x = self.task.clients.test.samples["x"][:CHECKED]
            return graph_of(network, {"features": x}, {"features": "of the samples"}, "logits")

        return exported_model(self, module, asked, draw)

    def client_columns(self) -> tuple[str, ...]:
        """Name a client's accuracies, and what it chose."""
        return CLIENT_COLUMNS

    def finish(self, module: FederatedRun, folder: Path) -> None:
        """Test how near the play is to an equilibrium, and was before learning, where asked to."""
        from coterie.page.certificate.of_run import certify_both, forget

        forget(folder)  # of a run that was resumed
        if self.settings.certify:
            chosen, shown = self.settings.certificate, self.settings.run.progress
            self._certified = certify_both(module, chosen, folder, shown)

    def final_metrics(self, module: FederatedRun) -> dict[str, float]:
        """Give the test of the round that was best on validation data, and of the last one.

        Of what was not measured there is none.
        """
        best, found = best_of(module.history, ACCURACY).round, {}
        if best:
            of_best = module.history[best - 1]
            names = (f"test/{n}" for n in ACCURACIES)
            found = {name: of_best[name] for name in names if name in of_best}
            found["test/best_round"] = float(best)
        measured = (row for row in reversed(module.history) if any("test/" in n for n in row))
        last = next(measured, {})
        found |= {f"last/{n}": last[f"test/{n}"] for n in ACCURACIES if f"test/{n}" in last}
        return found

    def client_table(self, module: FederatedRun) -> list[dict[str, Any]]:
        """Give what every client had in the last round that was evaluated."""
        rows = [{"client": client} for client in self.task.clients.ids.tolist()]
        for name in ACCURACIES[1:]:
            if f"test/{name}" in module.client_results:
                ids, values = module.client_results[f"test/{name}"]
                for client, value in zip(ids.tolist(), values.tolist(), strict=True):
                    rows[client][name] = value
        return rows

    def notes(self, module: FederatedRun) -> list[str]:
        """Say how a game ended, or which of a method's settings take the place of general ones."""
        if self.settings.method != "page":
            return remarks(self.settings)
        game = self.settings.game
        if not (self.settings.has_leaders or game.tune_p):
            return ["nobody had anything to choose: this was FedAvg with equal weights"]
        if settled(module.history, game):
            rest = f"no utility moved any more: the game came to rest in round {module.round}"
            if self.settings.reading == "released":
                rest = f"no utility moves any more after {module.round} rounds; all were played"
        else:
            rest = f"the game had not come to rest after {module.round} rounds"
        unread = [f"{name} has no effect in this game" for name in idle(self.settings)]
        return [rest, *self._certified, *unread]

    def reference(self) -> dict[str, float]:
        """The paper's Table 1, where clients and network are the paper's."""
        if departures(self.settings):
            return {}
        return reference(self.settings.data.name, self.settings.method)
