"""The client half of the method ``ensemble``: a scenario trains its own network and its partner.

The own network learns from the scenario's samples alone and never leaves. Its partner is FedAvg's
network, fine-tuned from the best round; in the control it is a second network that nobody else
sees. What a scenario predicts with is the mix of both (`coterie.msmt.ensemble.mixture`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.data.samples.samples import Samples
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.local_training.row_optimizer import Params, RowState
from coterie.core.methods.kit.evaluation import Evaluator
from coterie.core.methods.kit.model_client import ModelClient
from coterie.core.methods.kit.model_messages import ModelUpdate, QualityReport
from coterie.core.methods.kit.parts import part
from coterie.core.methods.kit.training import same_for_all
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.msmt.ensemble.messages import (
    EVALUATE,
    RECEIVE,
    TRAIN,
    TUNE,
    UNMEASURED,
    UPDATE,
    Course,
    EnsembleModel,
    EnsembleReport,
    Measure,
    RoundModel,
    Starts,
    TuneFrom,
)
from coterie.msmt.ensemble.mixture import Mixture, mixture
from coterie.msmt.ensemble.network import Ensemble, joined
from coterie.msmt.models.base import MultiTask
from coterie.msmt.settings import EnsembleOptions

_NETWORKS = 3


class EnsembleClient(ModelClient[EnsembleModel]):
    """A scenario with two networks; other arguments are those of `ModelClient`.

    Args:
        module: the form of both networks.
        training: epochs, batches, optimizer.
        options: of the method.
    """

    admits_alone = True

    def __init__(
        self, module: MultiTask, training: FedAvgSettings, options: EnsembleOptions
    ) -> None:
        super().__init__(module, training)
        self.options, self._ensemble = options, Ensemble(module)
        self._mixes = Evaluator(self._ensemble)

    @property
    def own_form(self) -> MultiTask:
        """Form of what a scenario predicts with."""
        return self._ensemble

    def newcomers(self, n_clients: int) -> EnsembleModel:
        """Private state before the first networks have come: zeros in their form."""
        usual = super().newcomers(n_clients)
        federated = self.options.partner == "fedavg"
        course = self._course(self.zeros(n_clients), usual.statistics)
        return EnsembleModel(
            {},
            usual.rounds,
            optimizer=usual.optimizer if federated else None,
            statistics=usual.statistics,
            alone=course,
            partner=None if federated else tree.clone(course),
            trained=torch.zeros_like(usual.rounds),
            noted=tree.clone(usual.statistics),
            tuned=tree.clone(course.best),
            is_tuned=torch.zeros(n_clients, dtype=torch.bool),
        )

    @RECEIVE
    def receive(
        self, down: Starts, mine: EnsembleModel, data: SplitSamples, key: Key
    ) -> tuple[None, EnsembleModel]:
        """Take what the networks of its own start with, once."""
        alone, partner = (
            self._course(same_for_all(first, len(data)), mine.statistics) if first else None
            for first in (down.alone, down.partner)
        )
        assert alone is not None
        return None, replace(mine, alone=alone, partner=partner)

    @UPDATE
    def update(
        self, down: RoundModel, mine: EnsembleModel, data: SplitSamples, key: Key
    ) -> tuple[ModelUpdate, EnsembleModel]:
        """Train w as in FedAvg, which is uploaded, and the own network, which is not."""
        given = same_for_all(down.weights, len(data))
        up, fitted = self.train_from(given, mine, data, key)
        noted = self._statistics_of(mine, down.best)
        mine = replace(
            mine,
            rounds=mine.rounds + 1,
            optimizer=self.moments(fitted.state),
            statistics=fitted.statistics,
            trained=torch.full_like(mine.trained, down.number),
            noted=noted,
        )
        return up, replace(mine, alone=self._went_on(mine.alone, data, key.fold("alone")))

    @TRAIN
    def train(
        self, down: None, mine: EnsembleModel, data: SplitSamples, key: Key
    ) -> tuple[None, EnsembleModel]:
        """The control's round: train both networks on the scenario's samples alone."""
        assert mine.partner is not None
        return None, replace(
            mine,
            rounds=mine.rounds + 1,
            alone=self._went_on(mine.alone, data, key.fold("alone")),
            partner=self._went_on(mine.partner, data, key.fold("partner")),
        )

    @TUNE
    def tune(
        self, down: TuneFrom, mine: EnsembleModel, data: SplitSamples, key: Key
    ) -> tuple[None, EnsembleModel]:
        """Train the partner on from its best round, at each rate for some epochs.

        The best of all by own validation samples is kept, the start among them; so a scenario that
        can measure nothing keeps the start.
        """
        if mine.partner is None:
            statistics = self._statistics_of(mine, down.best)
            start = {**same_for_all(down.weights, len(data)), **statistics}
            mine = replace(mine, statistics=tree.clone(statistics))
        else:
            start = mine.partner.best
        best, score = tree.clone(start), self._score(start, data.valid)
        for rate in self.options.rates:
            course = self._course(part(start, self._form), part(start, mine.statistics))
            for epoch in range(self.options.epochs):
                drawn = key.fold("tune", epoch)  # the same samples in the same order for all rates
                course = self._trained(course, data, drawn, rate * self.settings.lr, epochs=1)
                now = {**course.params, **course.statistics}
                found = self._score(now, data.valid)
                best, score = tree.where_rows(found > score, (now, found), (best, score))
        return None, replace(mine, tuned=best, is_tuned=torch.ones_like(mine.is_tuned))

    @EVALUATE
    def evaluate(
        self, down: Measure, mine: EnsembleModel, data: SplitSamples, key: Key
    ) -> tuple[EnsembleReport, None]:
        """Measure w, the mix, and where it is asked for both of its networks."""
        shared = {**same_for_all(down.weights, len(data)), **mine.statistics}
        before = shared if mine.partner is None else mine.partner.best
        partner = tree.where_rows(mine.is_tuned, mine.tuned, part(before, mine.tuned))
        mixtures = self._mixtures(mine.alone.best, partner, data.valid)
        models = {"global": shared} if down.weights else {}
        models["personal"] = joined(mine.alone.best, partner, mixtures)
        if down.apart:
            models |= {"local": mine.alone.best, "tuned": partner}
        found = self.measured(models, data)
        weight = torch.stack([each.weight.mean() for each in mixtures])
        return EnsembleReport(found.measures, found.samples, weight), None

    def measured(self, models: dict[str, Params], data: SplitSamples) -> QualityReport:
        """Measure networks on validation and test samples; ``personal`` is an `Ensemble`."""
        mixes = {name: models[name] for name in models if name == "personal"}
        found = super().measured({n: m for n, m in models.items() if n not in mixes}, data)
        for name, samples in (("valid", data.valid), ("test", data.test)):
            for model, params in mixes.items():
                quality = self._mixes.of_clients(params, samples).values
                found.measures.update({f"{model}/{name}/{n}": v for n, v in quality.items()})
        return found

    def work(self, data: SplitSamples) -> Tensor:
        """Local steps of each scenario in a round, ``(C,)``, for both networks."""
        return 2 * super().work(data)

    def footprint(self, data: SplitSamples, down: object) -> Tensor:
        """Bytes that a scenario takes in a step: both networks, and the best of each."""
        return _NETWORKS * super().footprint(data, down)

    def _mixtures(self, own: Params, partner: Params, valid: Samples) -> list[Mixture]:
        """Choose the mix of each scenario; plain means for one without validation samples."""
        shares, tasks = self.options.shares, self._ensemble.schema.n_tasks
        nothing = valid.lengths.new_zeros(0, tasks)
        found = [mixture(nothing, nothing, nothing, shares)] * len(valid)
        some = (valid.lengths > 0).nonzero().flatten()
        if some.numel():
            there = valid.take(some)
            logits = [
                self.evaluator.predictions(tree.take(params, some), there)
                for params in (own, partner)
            ]
            for place, a, b in zip(some.tolist(), *logits, strict=True):
                found[place] = mixture(a["logit"], b["logit"], a["label"], shares)
        return found

    def _course(self, params: Params, statistics: Params) -> Course:
        """A network before it is trained; each tensor ``(C, ...)``."""
        n_clients = len(next(iter(params.values())))
        return Course(
            tree.clone(params),
            self.moments(self.local.optimizer.begin(params)),
            tree.clone(statistics),
            tree.clone({**params, **statistics}),
            torch.full((n_clients,), UNMEASURED, dtype=torch.float64),
        )

    def _went_on(self, course: Course, data: SplitSamples, key: Key) -> Course:
        """Train a network for a round, and keep it if it is the best one so far.

        Of those that cannot be measured that is the last one.
        """
        course = self._trained(course, data, key)
        now = {**course.params, **course.statistics}
        score = self._score(now, data.valid)
        better = (score > course.score) | (course.score == UNMEASURED)
        best, score = tree.where_rows(better, (now, score), (course.best, course.score))
        return replace(course, best=best, score=score)

    def _trained(
        self,
        course: Course,
        data: SplitSamples,
        key: Key,
        lr: float | None = None,
        epochs: int | None = None,
    ) -> Course:
        """Train a network; one that diverges stays where it was."""
        fitted = self.local.train(
            course.params,
            self.local.batches(data.train, key, epochs),
            lr=lr,
            state=course.optimizer,
            statistics=course.statistics,
        )
        state = self._remembered(fitted.state, course)
        now = (fitted.params, state, fitted.statistics)
        sums = [total for _, total in tree.totals(tree.values(now), len(data))]
        sound = torch.stack([total.isfinite() for total in sums]).all(0)
        before = (course.params, course.optimizer, course.statistics)
        params, optimizer, statistics = tree.where_rows(sound, now, before)
        return replace(course, params=params, optimizer=optimizer, statistics=statistics)

    def _remembered(self, state: RowState, course: Course) -> RowState | None:
        return None if course.optimizer is None else state

    def _statistics_of(self, mine: EnsembleModel, best: int) -> Params:
        """Running statistics of FedAvg's best round: still those that it has, or noted before."""
        since = mine.trained <= best
        return tree.where_rows(since, mine.statistics, mine.noted)

    def _score(self, params: Params, valid: Samples) -> Tensor:
        """AUC of a network on own validation samples, ``(C,)`` float64; `UNMEASURED` without."""
        name = self._ensemble.monitor.key.removeprefix("eval/")
        return self.evaluator.of_clients(params, valid).values[name].nan_to_num(UNMEASURED)
