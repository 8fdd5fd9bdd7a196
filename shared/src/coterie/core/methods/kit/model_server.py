"""What the servers of all methods for any module have in common: the start, the measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.local_training.alone import statistics_of
from coterie.core.local_training.losses import AsBatch, Batch
from coterie.core.local_training.probing import check_layers
from coterie.core.local_training.row_optimizer import Params
from coterie.core.local_training.step_count import not_counting_steps
from coterie.core.local_training.watching import constants_of
from coterie.core.methods.kit.evaluation import Evaluator, MeasuresItself, monitor_of, shown_names
from coterie.core.methods.kit.model_messages import (
    EVALUATE,
    RECEIVE,
    GlobalModel,
    OwnStart,
    QualityReport,
)
from coterie.core.methods.kit.parts import matching, part, without
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.metrics.clients import mean_of_known
from coterie.core.metrics.monitor import Monitor
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Step
from coterie.core.protocol.replies import StackedReplies
from coterie.core.protocol.server import Server
from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class ServerModel:
    """State of the server.

    Attributes:
        weights: w, parameters by name; where a part of the model is shared, that part.
        own: first values of the others, for newcomers.
    """

    weights: Params
    own: Params = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class ServerSamples:
    """Samples that the server holds, fields by name, each ``(n, ...)``; empty = none.

    Attributes:
        valid: what choices are made by.
        test: what is reported, and seen by nothing else.
    """

    valid: Batch = field(default_factory=dict)
    test: Batch = field(default_factory=dict)


S = TypeVar("S", bound=ServerModel)
_SHOWN = {"valid": "eval", "test": "test"}  # part of the samples -> prefix of its metrics


class ModelServer(Server[S], Generic[S]):
    """Base of the servers: they hold one global model w.

    Args:
        build: makes the module; its initial parameters are drawn under the server's key.
        settings: of the method.
        samples: of the server, on which w is measured.
        as_batch: see `coterie.core.methods.kit.training.LocalTraining`.

    Attributes:
        measuring: by which clients are asked to measure w.
    """

    measuring: ClassVar[Step[GlobalModel, Any]] = EVALUATE

    def __init__(
        self,
        build: Callable[[], nn.Module],
        settings: FedAvgSettings,
        samples: ServerSamples | None = None,
        as_batch: AsBatch | None = None,
    ) -> None:
        if isinstance(build, nn.Module):
            raise UserError(
                f"the server makes its module itself: give it what makes one, such as the class "
                f"{type(build).__name__}, not a module"
            )
        self.settings, self.rounds = settings, settings.rounds
        self.samples = samples or ServerSamples()
        self._build, self._as_batch = build, as_batch

    @property
    def sums_alike(self) -> bool:
        """Where it averages all clients alike."""
        return self.sums and self.settings.weighting == "equal"

    @property
    def monitor(self) -> Monitor:
        """What the best round is chosen by."""
        return monitor_of(self.module)

    @cached_property
    def module(self) -> nn.Module:
        """The form of the model; its parameters do not matter."""
        with Key.from_seed(0).torch_rng():  # buffers must not vary
            return on_host(self._build)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Measures models on the server's samples."""
        return Evaluator(self.module, self._as_batch)

    @cached_property
    def _parts(self) -> set[str]:
        """Names of all that is trained in the module, and of its running statistics."""
        named = self.module.named_parameters()
        trained = {name for name, value in named if value.requires_grad}
        return trained | set(statistics_of(self.module))

    @cached_property
    def _constants(self) -> dict[str, str]:
        return constants_of(self.module)

    def constants(self) -> Mapping[str, str]:
        """Digests of what the module computes with and nobody trains."""
        return self._constants

    def initial(self, key: Key) -> Params:
        """Draw the initial parameters.

        Raises:
            UserError: the module has nothing to train, or layers that cannot be trained here.
        """
        with key.torch_rng():
            module = on_host(self._build)
        check_layers(module)
        named = module.named_parameters()
        weights = {name: w.detach().clone() for name, w in named if w.requires_grad}
        if not weights:
            raise UserError(f"{type(module).__name__} has no parameters to train")
        return weights

    def begin(self, key: Key) -> S:
        """Start with the initial parameters; errors as for `initial`."""
        parts = self.parted(self.initial(key))
        return ServerModel(parts["weights"], own=parts["own"])  # type: ignore[return-value]

    def parted(self, weights: Params) -> dict[str, Params]:
        """Part initial parameters into those that are shared and those that clients keep.

        Raises:
            UserError: a pattern of the settings fits no parameter.
        """
        shared = matching(weights, self.settings.share)
        return {"weights": part(weights, shared), "own": without(weights, shared)}

    def start_block(self, state: S, block: int, cohort: Cohort, key: Key) -> S:
        """Enrol newcomers, and give them what their models start with beside the shared part."""
        self.welcome(cohort, state.own)
        return state

    def welcome(self, cohort: Cohort, own: Params) -> None:
        """Enrol newcomers, and give them first values of what is their own, if there is any."""
        newcomers = cohort.enrol()
        if own and newcomers.numel():
            places = torch.searchsorted(cohort.ids, newcomers)
            cohort.part(places).ask(RECEIVE, OwnStart(own))

    def model(self, state: S) -> Params:
        """The global model, as it is measured."""
        return state.weights

    def evaluate_if_due(self, state: S, cohort: Cohort) -> None:
        """Evaluate after every so many rounds and after the last, and note what one is chosen by.

        That is ``eval/accuracy``, or the measure that the module names: the mean over the models of
        ``settings.chosen_by`` that there are, by default of ``eval/server_accuracy`` and
        ``eval/personal_accuracy``. Of a module with measures of its own all are so averaged.
        """
        every, now = self.settings.evaluate_every, cohort.when[-1]
        if not every or (now % every and now != self.settings.rounds):
            return
        with not_counting_steps():
            self.test(state, cohort)
        scalars, names = cohort.journal.scalars, shown_names(self.module)
        own = isinstance(self.module, MeasuresItself)
        parts = tuple(_SHOWN.values()) if own else ("eval",)
        for prefix, name in product(parts, names):
            models = (f"{prefix}/{who}_{name}" for who in self.settings.chosen_by)
            found = [scalars[model] for model in models if model in scalars]
            if found:
                cohort.journal.scalar(f"{prefix}/{name}", sum(found) / len(found))

    def test(self, state: S, cohort: Cohort) -> None:
        """Enter the accuracies and losses, or the module's own measures, into the cohort's journal.

        Under ``eval/`` they are measured on validation samples, under ``test/`` on test samples:
        ``server_…`` is w on the server's, ``global_…`` w on each client's, ``personal_…`` its own
        model on each client's; the last two are means over clients.
        """
        self.test_server(self.model(state), cohort)
        self.note_clients(cohort.ask(self.measuring, GlobalModel(self.model(state))), cohort)

    def test_server(self, weights: Params, cohort: Cohort) -> None:
        """Measure a model on the server's samples.

        Not one whose other parts, or running statistics, are the clients': the server has no model.
        """
        if self._parts - set(weights):
            return
        one = {name: value[None] for name, value in weights.items()}
        for held, prefix in _SHOWN.items():
            quality = self.evaluator.of_models(one, getattr(self.samples, held))
            for name, values in quality.values.items():
                self._note(cohort, f"{prefix}/server_{name}", values)

    def note_clients(self, replies: StackedReplies[QualityReport], cohort: Cohort) -> None:
        """Note what the clients that answered measured, see `note_measures`."""
        if (report := replies.up) is not None:
            self.note_measures(report, replies.ids, cohort)

    def note_measures(self, report: QualityReport, ids: Tensor, cohort: Cohort) -> None:
        """Note the means of what the clients ``ids`` measured, and their own, but for the loss.

        A client whose measure is not defined, as an AUC of one class, is left out of the mean.
        """
        for path, values in report.measures.items():
            model, held, name = path.split("/")
            key = f"{_SHOWN[held]}/{model}_{name}"
            self._note(cohort, key, values)
            if name != "loss":
                cohort.journal.per_client(key, ids, values)

    def reopen(self, state: S, history: Sequence[dict[str, float]]) -> S:
        """Go on after the last round, unless it was evaluated for being the last.

        Raises:
            UserError: it was; a run of more rounds would not have measured there.
        """
        every = self.settings.evaluate_every
        if every and len(history) % every:
            raise UserError(
                f"its last round was evaluated out of turn, as evaluations are every {every} rounds"
            )
        return super().reopen(state, history)

    def _note(self, cohort: Cohort, key: str, values: Tensor) -> None:
        cohort.journal.known(key, mean_of_known(values))
