"""What the clients of all methods for any module have in common: messages, evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.fit import AsBatch, Params
from coterie.core.methods.kit.evaluation import Evaluator, Quality
from coterie.core.methods.kit.fields import changed, counted, measured
from coterie.core.methods.kit.local_sgd import LocalSGD, same_for_all
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Down, Private, Report, Up, carries
from coterie.core.protocol.step import Step
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

_OWN = {"personal", "rounds"}  # the private fields that the quality of one's own model depends on


@dataclass(frozen=True)
class GlobalModel(Down):
    """The server's model w."""

    weights: Params = carries("the server's model w, parameters by name")


@dataclass(frozen=True)
class ModelUpdate(Up):
    """What a client's local training changed; stacked over C clients."""

    change: Params = changed("the model's parameters, w_k - w")  # each (C, ...)
    samples: Tensor = counted("number of samples n_k")  # (C,) int64
    loss: Tensor = measured("mean training loss")  # (C,)


@dataclass(frozen=True)
class QualityReport(Report):
    """How good models are on the clients' samples; NaN for a client without any.

    The keys are ``global/valid``, ``global/test``, ``personal/valid`` and ``personal/test``, those
    of ``samples`` ``valid`` and ``test``; each value is ``(C,)``.
    """

    loss: dict[str, Tensor] = measured("mean losses of the server's and its own model", _OWN)
    accuracy: dict[str, Tensor] = measured("accuracies of the server's and its own model", _OWN)
    samples: dict[str, Tensor] = counted("numbers of samples to measure on")


@dataclass(frozen=True)
class OwnModel(Private):
    """What a client keeps.

    Attributes:
        personal: parameters of its own model, each ``(C, ...)``; empty where none is kept.
        rounds: ``(C,)`` int64, rounds that it has trained in; before, its own model is the
            server's.
    """

    personal: Params
    rounds: Tensor


UPDATE = Step("update", GlobalModel, ModelUpdate)
EVALUATE = Step("evaluate", GlobalModel, QualityReport)

P = TypeVar("P", bound=OwnModel)


class ModelClient(Client[P, SplitSamples]):
    """Base of the clients: a newcomer's state, and the evaluation.

    Arguments and errors are those of `coterie.core.methods.kit.local_sgd.LocalSGD`; of a module
    with ``correct(batch)``, ``(B,)`` bool, accuracies are measured too.
    """

    def __init__(
        self, module: nn.Module, settings: FedAvgSettings, as_batch: AsBatch | None = None
    ) -> None:
        self.module, self.settings, self._as_batch = module, settings, as_batch
        self.local = LocalSGD(module, settings, as_batch)
        self.evaluator = Evaluator(module, as_batch)
        named = module.named_parameters()
        self._form = {name: value.detach() for name, value in named if value.requires_grad}

    def enrol(self, data: SplitSamples, key: Key) -> P:
        """Start without a model; it comes from the server."""
        return self.newcomers(len(data))  # type: ignore[return-value]

    def newcomers(self, n_clients: int) -> OwnModel:
        """Private state before the first round, for C clients."""
        kept = self.zeros(n_clients) if self.settings.keep_models else {}
        return OwnModel(kept, torch.zeros(n_clients, dtype=torch.int64))

    def zeros(self, n_clients: int) -> Params:
        """Zeros in the form of the model's parameters, each ``(C, ...)``."""
        return {n: v.new_zeros(n_clients, *v.shape) for n, v in self._form.items()}

    def kept(self, params: Params) -> Params:
        """What a client keeps of its model after training."""
        return dict(params) if self.settings.keep_models else {}

    def work(self, data: SplitSamples) -> Tensor:
        """Local steps of each client, ``(C,)``."""
        return self.local.steps(data.train)

    def footprint(self, data: SplitSamples, down: Any) -> Tensor:
        """Bytes of parameters, gradients and new parameters of a client, batch and orders."""
        model = sum(value.numel() * value.element_size() for value in self._form.values())
        samples = data.train.samples.values()
        sample = sum(value[:1].numel() * value.element_size() for value in samples)
        batch = self.settings.batch_size or int(data.lengths.max())
        orders = 8 * self.settings.epochs * data.lengths  # of all epochs, int64
        return orders + (4 * model + 4 * batch * sample)

    @EVALUATE
    def evaluate(
        self, down: GlobalModel, mine: OwnModel, data: SplitSamples, key: Key
    ) -> tuple[QualityReport, None]:
        """Measure the server's model, and the client's own, on its validation and test samples.

        A client that has not trained yet has the server's; else a mean over clients would begin
        with the few that trained first, and its best round be theirs.
        """
        models = {"global": {name: value[None] for name, value in down.weights.items()}}
        if mine.personal:
            given = same_for_all(down.weights, len(data))
            models["personal"] = tree.where_rows(mine.rounds > 0, mine.personal, given)
        return self.measured(models, data), None

    def measured(self, models: dict[str, Params], data: SplitSamples) -> QualityReport:
        """Measure models on the validation and test samples.

        Args:
            models: ``global``, each ``(1, ...)``, ``personal``, each ``(C, ...)``, or both.
            data: of C clients.
        """
        found: dict[str, Quality] = {}
        for model, params in models.items():
            for part, samples in (("valid", data.valid), ("test", data.test)):
                found[f"{model}/{part}"] = self.evaluator.of_clients(params, samples)
        return QualityReport(
            {name: quality.loss for name, quality in found.items()},
            {name: quality.accuracy for name, quality in found.items()},
            {"valid": data.valid.lengths, "test": data.test.lengths},
        )
