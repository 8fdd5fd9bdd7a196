"""One run of a federation of scenarios: its data, its two halves, its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.selection import best_of
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_server import ModelServer
from coterie.core.methods.reference.by_trainer import SampleTraining
from coterie.core.run.driver import FederatedRun
from coterie.core.run.estimate import Need
from coterie.core.run.experiment import Experiment as BaseExperiment
from coterie.core.settings.schema import changed
from coterie.core.tensors.device import moved
from coterie.core.tensors.keys import Key
from coterie.msmt.data.describe import describe
from coterie.msmt.data.make import make_task
from coterie.msmt.data.task import Task
from coterie.msmt.halves import halves
from coterie.msmt.methods import remarks, settings_of
from coterie.msmt.models.base import MultiTask
from coterie.msmt.models.make import network
from coterie.msmt.readings import resolve
from coterie.msmt.settings.run import Settings

_COPIES = 3  # of a network, at least: its parameters and two moments of Adam
_TRAINED = 6  # operations a weight and sample, forward and backward
_PROJECTED = 16  # as many inputs may share one product, at most


class Experiment(BaseExperiment[Settings]):
    """Build everything that `coterie train pf-msmtrec` runs.

    Args:
        settings: as the user gave them; the reading's choices are filled in.
    """

    paper = "pf-msmtrec"

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
        kept = _COPIES * schema.n_scenarios * 4
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

    def client_columns(self) -> tuple[str, ...]:
        """Name a scenario's AUCs."""
        who = "personal" if self.answer_is_own else "global"
        return tuple(f"test/{who}_auc_{task}" for task in self.task.schema.tasks)

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
