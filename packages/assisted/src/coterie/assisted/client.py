"""The client half of MTAL, Algorithm 1: one organisation, with its own data, model and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from coterie.assisted.aae.cells import Pattern as CellPattern
from coterie.assisted.aae.network import Params, predict
from coterie.assisted.aae.training import train
from coterie.assisted.aggregation import Choice, Fit, choose
from coterie.assisted.data import OwnDomain
from coterie.assisted.learner import Learner
from coterie.assisted.meeting import Meeting
from coterie.assisted.messages import (
    COMBINE,
    FIT,
    RESIDUAL,
    Fits,
    Model,
    OrganisationState,
    Outputs,
    Progress,
    PseudoTargets,
    Residuals,
    RoundChoice,
    Turn,
)
from coterie.assisted.prediction_messages import (
    ANSWER,
    MEASURE,
    QUERY,
    Answers,
    Predictions,
    Quality,
    Queries,
    Query,
    Tested,
)
from coterie.assisted.protection import Masks, mean_of_round, means_of_rounds, protected
from coterie.assisted.quality import quality
from coterie.assisted.settings import Settings
from coterie.assisted.view import Matrices, Matrix, View, common, places_of
from coterie.core.data.interactions.cells import Cells
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Form
from coterie.core.tensors.appended import Appended
from coterie.core.tensors.keys import Key

T = TypeVar("T")


class Predictor(Client[OrganisationState, OwnDomain]):
    """An organisation that has models of all rounds, and so have its peers.

    Args:
        settings: with the reading's choices resolved.

    Attributes:
        matrices: of cells that it was asked about.
    """

    form: ClassVar[Form] = "list"

    def __init__(self, settings: Settings) -> None:
        self.settings, self.matrices = settings, Matrices()
        self._learners: dict[int, Learner] = {}
        self._views: dict[int, View] = {}

    @QUERY
    def query(
        self, down: Tested, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Query, None]:
        """Name the cells of the test (prediction stage)."""
        return Query(places_of(mine, data.test)), None

    @ANSWER
    def answer(
        self, down: Queries, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Answers, None]:
        """Answer for cells of others with the models of rounds 1 to t (prediction stage)."""
        asked = self.view(mine, data).asked(numbered(down.queries))
        found = self._of_rounds(mine, data, asked, down.round)
        rounds = [model.round for model in mine.models if model.round <= down.round]
        masked, values = self.settings.protect.sum, {}
        for (peer, each), n in zip(found.items(), down.cells.values(), strict=True):
            nothing = mine.scores.new_zeros(1, n)
            # A sum is of all rounds: who has no model of one adds 0 to it.
            stacked = [
                each[t][None] if t in each else nothing
                for t in (range(1, down.round + 1) if masked else rounds)
            ]
            values[peer] = torch.cat([nothing[:0], *stacked])
        known = torch.tensor(rounds, dtype=torch.int64)
        if masked:
            masks = Masks(data, down.roster, "answer", down.round, down.attempt)
            return Answers(None, masks.hidden(values), known), None
        return Answers(named(values), None, known), None

    @MEASURE
    def measure(
        self, down: Predictions, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Quality, None]:
        """Measure the newest F^t on validation cells, or F^t on those of the test."""
        testing = down.split == "test"
        cells = data.test if testing else data.valid
        scores = self.predicted(down, mine, data, cells) if testing else mine.held
        pooled = self.settings.evaluation == "pooled"
        return quality(self.learner(data), cells, scores, pooled), None

    def outputs(self, learner: Learner, view: View, params: Params, pattern: CellPattern) -> Tensor:
        """What an autoencoder gives at the cells of a pattern, ``(n,)``."""
        network, inputs = learner.network(view.n_columns), learner.inputs(view.first_column)
        return predict(network, params, inputs, pattern)

    def predicted(
        self, down: Predictions, mine: OrganisationState, data: OwnDomain, cells: Cells
    ) -> Tensor:
        """F^t at some of the organisation's cells, ``(n,)``: F⁰ + Σ_t η^t Σ_j w_j^t f_j^t."""
        scores = self.learner(data).base.at(cells)
        for choice, outputs in self.added(down, mine, data, cells):
            step = Choice(choice.eta, choice.weights).step(outputs)
            scores = scores + step.to(scores)
        return scores

    def added(
        self, down: Predictions, mine: OrganisationState, data: OwnDomain, cells: Cells
    ) -> Iterator[tuple[RoundChoice, Tensor]]:
        """What is added to F⁰ in each round: the choice, and outputs ``(n, J)`` that it is about.

        Arguments are as of `predicted`.
        """
        if not down.round:
            return
        view = self.view(mine, data)
        own = self._of_rounds(mine, data, view.own(cells), down.round)[data.id]
        if self.settings.protect.sum:
            of_round = means_of_rounds(data, down, own)
        else:
            of_round = self._given(view, down, own, cells)
        for choice in mine.choices:
            if choice.round > down.round:
                break
            yield choice, of_round(choice)

    def _given(
        self, view: View, down: Predictions, own: Mapping[int, Tensor], cells: Cells
    ) -> Callable[[RoundChoice], Tensor]:
        """Outputs ``(n, J)`` of the models that a round's choice is about."""
        use_own, found = self.settings.assist.own == "use", {view.data.id: own}
        for peer, values in numbered(down.values).items():
            rounds = down.rounds[str(peer)].tolist()
            found[peer] = dict(zip(rounds, values, strict=True))

        def outputs(choice: RoundChoice) -> Tensor:
            models = choice.models.tolist()
            of_peer = {peer: found.get(peer, {}).get(choice.round) for peer in models}
            mine = of_peer.pop(view.data.id, None)
            if mine is None:
                mine = torch.zeros(len(cells), dtype=cells.values.dtype)
            return view.outputs([cells], mine, of_peer, use_own)[1]

        return outputs

    def _of_rounds(
        self, mine: OrganisationState, data: OwnDomain, cells: Matrix, last: int
    ) -> dict[int, dict[int, Tensor]]:
        """Outputs of its models of rounds 1 to ``last``: whose cells -> round -> ``(n,)``."""
        view, learner = self.view(mine, data), self.learner(data)
        found: dict[int, dict[int, Tensor]] = {id_: {} for id_ in cells.slices}
        for model in mine.models:
            if model.round <= last:
                outputs = self.outputs(learner, view, model.params, cells.pattern)
                for id_, values in cells.parted(outputs).items():
                    found[id_][model.round] = values
        return found

    def view(self, mine: OrganisationState, data: OwnDomain) -> View:
        """How the organisation sees its peers' cells, made once."""
        found = self._views.get(data.id)
        if found is None or not found.is_of(mine, data):
            found = self._views[data.id] = View(mine, data, self.matrices)
        return found

    def learner(self, data: OwnDomain) -> Learner:
        """What the organisation learns with, made once."""
        found = self._learners.get(data.id)
        if found is None or found.data is not data:
            found = self._learners[data.id] = Learner(self.settings, data)
        return found


def numbered(values: Mapping[str, T]) -> dict[int, T]:
    """What came under the names of organisations, by their numbers, ascending."""
    return {int(name): values[name] for name in sorted(values, key=int)}


def named(values: Mapping[int, T]) -> dict[str, T]:
    """What goes out, under the names of the organisations that it is for."""
    return {str(number): value for number, value in values.items()}


class Organisation(Meeting[OrganisationState], Predictor):
    """An organisation that assists others and is assisted by them.

    Args:
        settings: with the reading's choices resolved.
    """

    def enrol(self, data: OwnDomain, key: Key) -> OrganisationState:
        """Begin with the base model F⁰ (section 3.3)."""
        base = self.learner(data).base
        return OrganisationState(
            shared=torch.full((data.train.n_rows,), -1, dtype=torch.int32),
            peers=Appended(),
            models=Appended(),
            choices=Appended(),
            scores=base.at(data.train),
            held=base.at(data.valid),
            own=torch.empty(0),
            sent=torch.empty(0),
        )

    @RESIDUAL
    def residual(
        self, down: Turn, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Residuals, OrganisationState | None]:
        """Compute r_k = -∂L_k(F_k^{t-1}, R_k)/∂F at the cells of common rows (Eq. 5)."""
        how = self.settings.protect
        sent = protected(self._residual(mine, data), how, key.fold("protect"))
        new = replace(mine, sent=sent) if how.own == "protected" else None
        return Residuals(sent[common(mine, data.train)]), new

    @FIT
    def fit(
        self, down: PseudoTargets, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Fits, OrganisationState]:
        """Fit a new autoencoder to all residuals at hand; answer for the cells of each peer."""
        view, learner = self.view(mine, data), self.learner(data)
        residuals = numbered(down.residuals)
        if self.settings.train.own_targets != "none" or not residuals:
            fits_sent = self.settings.protect.own == "protected"
            residuals[data.id] = mine.sent if fits_sent else self._residual(mine, data)
        targets = view.targets(residuals)
        params = self.fitted(learner, view, targets.pattern, targets.sorted(residuals), key)
        wanted = view.wanted
        found = wanted.parted(self.outputs(learner, view, params, wanted.pattern))
        models = mine.models.append(Model(down.round, params))
        mine = replace(mine, models=models, own=found[data.id], sent=torch.empty(0))
        fits = {int(peer): found[int(peer)] for peer in down.cells}
        if self.settings.protect.sum:
            return Fits(None, Masks(data, down.roster, "fit", down.round).hidden(fits)), mine
        return Fits(named(fits), None), mine

    @COMBINE
    def combine(
        self, down: Outputs, mine: OrganisationState, data: OwnDomain, key: Key
    ) -> tuple[Progress, OrganisationState]:
        """Choose w and η, and move: F^t = F^{t-1} + η Σ_j w_j f_j (Eq. 6 to 8)."""
        view, learner, how = self.view(mine, data), self.learner(data), self.settings.assist
        cells, n, use_own = [data.train, data.valid], len(data.train), how.own == "use"
        if not self.settings.protect.sum:
            models, outputs = view.outputs(cells, mine.own, numbered(down.values), use_own)
        elif down.total is not None:
            models, outputs = mean_of_round(data, down, mine.own if use_own else None)
        else:  # a peer did not answer, so that nobody has outputs of the round
            stays = Choice(torch.tensor(0.0), torch.zeros(1))
            return self._progress(mine, data, stays), replace(mine, own=torch.empty(0))
        outputs = outputs.double()
        every = Fit(
            learner.objective,
            torch.cat([part.values for part in cells]).double(),
            torch.cat([mine.scores, mine.held]).double(),
            outputs,
        )
        choice = choose(every.at(slice(n)), how, every.at(slice(n, None)))
        step = choice.step(outputs).to(mine.scores)
        mine = replace(
            mine,
            scores=mine.scores + step[:n],
            held=mine.held + step[n:],
            choices=mine.choices.append(
                RoundChoice(down.round, models, choice.eta, choice.weights)
            ),
            own=torch.empty(0),
        )
        return self._progress(mine, data, choice), mine

    def fitted(
        self, learner: Learner, view: View, pattern: CellPattern, values: Tensor, key: Key
    ) -> Params:
        """Train a new autoencoder to give values, ``(n,)``, at the cells of a pattern."""
        network, inputs = learner.network(view.n_columns), learner.inputs(view.first_column)
        return train(network, inputs, pattern, values, learner.plan, key).params

    def _progress(self, mine: OrganisationState, data: OwnDomain, choice: Choice) -> Progress:
        return Progress(
            loss=self.learner(data).objective.loss(data.train.values, mine.scores).mean(),
            residual=self._residual(mine, data).square().mean().sqrt(),
            eta=choice.eta,
            weights=choice.weights,
            cells=torch.tensor(len(data.train)),
        )

    def _residual(self, mine: OrganisationState, data: OwnDomain) -> Tensor:
        """r_k at all training cells, ``(n,)``; those of rows that nobody else has stay."""
        return self.learner(data).objective.residual(data.train.values, mine.scores)
