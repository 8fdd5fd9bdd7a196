"""What the servers of all methods for any module have in common: the start, the measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.local_training.fit import AsBatch, Batch, Params
from coterie.core.local_training.step_count import not_counting_steps
from coterie.core.methods.kit.evaluation import Evaluator
from coterie.core.methods.kit.model_client import EVALUATE, GlobalModel, QualityReport
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.metrics.monitor import Monitor
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.replies import StackedReplies
from coterie.core.protocol.server import Server
from coterie.core.tensors.device import on_host
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class ServerModel:
    """State of the server.

    Attributes:
        weights: w, parameters by name.
    """

    weights: Params


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
_CHOSEN_BY = ("eval/server_accuracy", "eval/personal_accuracy")
_SHOWN = {"valid": "eval", "test": "test"}  # part of the samples -> prefix of its metrics


class ModelServer(Server[S], Generic[S]):
    """Base of the servers: they hold one global model w.

    Args:
        build: makes the module; its initial parameters are drawn under the server's key.
        settings: of the method.
        samples: of the server, on which w is measured.
        as_batch: see `coterie.core.methods.kit.local_sgd.LocalSGD`.

    Attributes:
        monitor: what the best round is chosen by.
    """

    monitor: ClassVar = Monitor("eval/accuracy")

    def __init__(
        self,
        build: Callable[[], nn.Module],
        settings: FedAvgSettings,
        samples: ServerSamples | None = None,
        as_batch: AsBatch | None = None,
    ) -> None:
        self.settings, self.rounds = settings, settings.rounds
        self.samples = samples or ServerSamples()
        self._build, self._as_batch = build, as_batch

    @cached_property
    def module(self) -> nn.Module:
        """The form of the model; its parameters do not matter."""
        with Key.from_seed(0).torch_rng():  # buffers must not vary
            return on_host(self._build)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Measures models on the server's samples."""
        return Evaluator(self.module, self._as_batch)

    def initial(self, key: Key) -> Params:
        """Draw the initial parameters.

        Raises:
            UserError: the module has nothing to train.
        """
        with key.torch_rng():
            module = on_host(self._build)
        named = module.named_parameters()
        weights = {name: w.detach().clone() for name, w in named if w.requires_grad}
        if not weights:
            raise UserError(f"{type(module).__name__} has no parameters to train")
        return weights

    def begin(self, key: Key) -> S:
        """Start with the initial parameters; errors as for `initial`."""
        return ServerModel(self.initial(key))  # type: ignore[return-value]

    def start_block(self, state: S, block: int, cohort: Cohort, key: Key) -> S:
        """Enrol newcomers."""
        cohort.enrol()
        return state

    def model(self, state: S) -> Params:
        """The global model, as it is measured."""
        return state.weights

    def evaluate_if_due(self, state: S, cohort: Cohort) -> None:
        """Evaluate after every so many rounds and after the last, and note what one is chosen by.

        That is ``eval/accuracy``, the mean of ``eval/server_accuracy`` and
        ``eval/personal_accuracy``, or the one that there is.
        """
        every, now = self.settings.evaluate_every, cohort.when[-1]
        if not every or (now % every and now != self.settings.rounds):
            return
        with not_counting_steps():
            self.test(state, cohort)
        scalars = cohort.journal.scalars
        found = [scalars[name] for name in _CHOSEN_BY if name in scalars]
        if found:
            cohort.journal.scalar(self.monitor.key, sum(found) / len(found))

    def test(self, state: S, cohort: Cohort) -> None:
        """Enter the three accuracies and losses into the cohort's journal.

        Under ``eval/`` they are measured on validation samples, under ``test/`` on test samples:
        ``server_…`` is w on the server's, ``global_…`` w on each client's, ``personal_…`` its own
        model on each client's; the last two are means over clients.
        """
        self.test_server(self.model(state), cohort)
        self.note_clients(cohort.ask(EVALUATE, GlobalModel(self.model(state))), cohort)

    def test_server(self, weights: Params, cohort: Cohort) -> None:
        """Measure a model on the server's samples."""
        one = {name: value[None] for name, value in weights.items()}
        for part, prefix in _SHOWN.items():
            quality = self.evaluator.of_models(one, getattr(self.samples, part))
            self._note(cohort, f"{prefix}/server", quality.loss, quality.accuracy)

    def note_clients(self, replies: StackedReplies[QualityReport], cohort: Cohort) -> None:
        """Note the means of what the clients measured, and each client's accuracy."""
        if (report := replies.up) is None:
            return
        for name in report.loss:
            model, part = name.split("/")
            key = f"{_SHOWN[part]}/{model}"
            self._note(cohort, key, report.loss[name], report.accuracy[name])
            cohort.journal.per_client(f"{key}_accuracy", replies.ids, report.accuracy[name])

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

    def _note(self, cohort: Cohort, key: str, loss: Tensor, accuracy: Tensor) -> None:
        for name, values in (("loss", loss), ("accuracy", accuracy)):
            if not values.isnan().all():
                cohort.journal.scalar(f"{key}_{name}", values.nanmean())
