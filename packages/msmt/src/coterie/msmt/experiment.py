"""One run of a federation of scenarios: its data, its two halves, its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.selection import best_of
from coterie.core.methods import registry
from coterie.core.methods.bounds import CentralServer
from coterie.core.methods.by_trainer import SampleTraining
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_server import ModelServer
from coterie.core.protocol.card import Card
from coterie.core.run.checkpoint import BEST
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Experiment as BaseExperiment
from coterie.core.run.experiment import Need
from coterie.core.run.exported import Asked, Exported, Graph
from coterie.core.settings.schema import changed
from coterie.core.tensors.device import moved
from coterie.core.tensors.keys import Key
from coterie.msmt.algorithm import PFServer
from coterie.msmt.data.describe import describe
from coterie.msmt.data.make import make_task
from coterie.msmt.data.task import Schema, Task
from coterie.msmt.ensemble.server import EnsembleServer, PairServer
from coterie.msmt.methods import client_half, remarks, settings_of
from coterie.msmt.models.base import MultiTask
from coterie.msmt.models.make import network
from coterie.msmt.models.template import TemplateMMoE
from coterie.msmt.readings import resolve
from coterie.msmt.settings import Settings


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
    if settings.method == "ensemble":
        kind = EnsembleServer if settings.ensemble.partner == "fedavg" else PairServer
        return kind(build, settings_of(settings))
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


_COPIES = 3  # of a network, at least: its parameters and two moments of Adam
_NETWORKS = {"ensemble": 3}  # of a scenario, where it is not one: two, and the best rounds
_TRAINED = 6  # operations a weight and sample, forward and backward
_PROJECTED = 16  # as many inputs may share one product, at most


class Experiment(BaseExperiment[Settings]):
    """Build everything that `coterie train pf-msmtrec` runs.

    Args:
        settings: as the user gave them; the reading's choices are filled in.
    """

    paper = "pf-msmtrec"
    tested = BEST

    def __init__(self, settings: Settings) -> None:
        super().__init__(resolve(settings))
        self._compared: list[dict[str, Any]] = []  # what `finish` found, for `client_table`

    @property
    def source(self) -> str:
        """What the data are, for people."""
        return self.task.name

    @cached_property
    def task(self) -> Task:
        """What the scenarios hold."""
        dtype = getattr(torch, self.settings.engine.dtype)
        return make_task(self.settings.data, Key.from_seed(self.settings.seed).fold("data"), dtype)

    def beside(self, values: Mapping[str, Any]) -> Experiment:
        """Make the experiment of other settings, by their keys, on the same samples."""
        other = type(self)(changed(self.settings, values))
        other.task = self.task
        return other

    @property
    def build(self) -> Callable[[], MultiTask]:
        """Makes the network."""
        return network(self.settings, self.task.schema)

    def public(self) -> dict[str, Any]:
        """Give the form of the samples."""
        return self.task.schema.to_plain()

    def describe_data(self) -> list[dict[str, Any]]:
        """Count the samples of each scenario, and the share of each label."""
        return describe(self.task)

    @property
    def blocks(self) -> list[SplitSamples]:
        """The scenarios' samples: there is one block."""
        return [self.task.clients]

    def needs(self) -> list[Need]:
        """Estimate networks, optimizers and steps of the scenarios."""
        schema, model, train = self.task.schema, self.settings.model, self.settings.train
        d = model.embedding
        tables = sum(schema.vocabularies) * d
        first = model.experts * schema.n_inputs * d * model.expert_layers[0]
        kept = _COPIES * schema.n_scenarios * 4 * _NETWORKS.get(self.settings.method, 1)
        longest = int(self.task.clients.lengths.max())
        sizes = ("model.experts", "model.expert_layers", "model.embedding")
        return [
            Need("the embeddings of the scenarios", ("model.embedding",), memory=kept * tables),
            Need("the experts of the scenarios", sizes, memory=kept * first),
            Need(
                "local training",
                ("train.epochs",),
                operations=_TRAINED * longest * train.epochs * first // _PROJECTED,
                steps=train.epochs * (longest // train.batch_size),
            ),
        ]

    def halves(self) -> tuple[ModelServer[Any], ModelClient[Any]]:
        """Build both halves."""
        return halves(self.settings, self.build, moved(self.task, self.device))

    def standalone(self, client: int | None, network: str | None) -> SampleTraining:
        """Give the network on the samples of all scenarios, or of one."""
        how, seed = settings_of(self.settings), self.settings.seed
        return SampleTraining(self.build, how, self.task.clients, seed, client)

    def exported(self, module: FederatedRun, asked: Asked) -> Exported:
        """Give the global network of the tested round, or a scenario's own.

        Raises:
            UserError: there is no such network or scenario.
        """
        from coterie.core.export.of_modules import CHECKED, Called, exported_model, graph_of

        held = self.task.clients.test.samples
        about = {
            "ids": "of the categorical fields; 0 = unknown",
            "numbers": "of the numerical fields",
            "scenario": "number of each sample's scenario",
        }
        given = {name: held[name][:CHECKED] for name in about if held[name][:1].numel()}

        def draw(network: nn.Module) -> Graph:
            return graph_of(Called(network, "logits", tuple(given)), given, about, "logits")

        return exported_model(self, module, asked, draw, answers=self.without_global)

    def client_columns(self) -> tuple[str, ...]:
        """Name a scenario's AUCs."""
        who = "personal" if self.answer_is_own else "global"
        return tuple(f"test/{who}_auc_{task}" for task in self.task.schema.tasks)

    @property
    def without_global(self) -> tuple[str, ...]:
        """Methods whose server has no model that answers; the control of `ensemble` is one."""
        is_control = self.settings.ensemble.partner == "local"
        return ("pf-msmtrec", *(["ensemble"] if is_control else []))

    @property
    def answer_is_own(self) -> bool:
        """Whether a method gives each scenario its own model."""
        return self.settings.method not in ("fedavg", "fedprox", "central")

    def final_metrics(self, module: FederatedRun) -> dict[str, float]:
        """Give the test of the round that was best on validation samples, and of the last one.

        Of what was not measured there is none.
        """
        names = ("auc", *(f"auc_{task}" for task in self.task.schema.tasks), "loss")
        best, last = best_of(module.history, MultiTask.monitor).round, module.history[-1]
        found = {}
        if best:
            of_best = module.history[best - 1]
            found = {f"test/{n}": of_best[f"test/{n}"] for n in names if f"test/{n}" in of_best}
            found["test/best_round"] = float(best)
        found |= {f"last/{n}": last[f"test/{n}"] for n in names if f"test/{n}" in last}
        return found

    def finish(self, module: FederatedRun, folder: Path) -> None:
        """Show a run of PF-MSMTrec beside other methods, where asked to."""
        from coterie.msmt.comparison import compare  # matplotlib is heavy

        if self.settings.compares:
            self._compared = compare(self, module, folder)

    def client_table(self, module: FederatedRun) -> list[dict[str, Any]]:
        """Give what every scenario had: in the last round that was evaluated, or the comparison."""
        if self._compared:
            return self._compared
        rows: list[dict[str, Any]] = [
            {"scenario": name, "train": int(count)}
            for name, count in zip(
                self.task.schema.scenarios, self.task.clients.lengths, strict=True
            )
        ]
        for column in self.client_columns():
            ids, values = module.client_results.get(column, (torch.empty(0), Tensor()))
            for client, value in zip(ids.tolist(), values.tolist(), strict=True):
                rows[int(client)][column.rpartition("_auc_")[2]] = value
        return rows

    def notes(self, module: FederatedRun) -> list[str]:
        """Say what is to be known of the data, and which settings have no effect."""
        found = [*self.task.notes, *remarks(self.settings)]
        if self._compared:
            found.append(
                "the table is of the best round of each method (comparison.md, comparison.png); "
                "--compare false leaves it out"
            )
        return found
