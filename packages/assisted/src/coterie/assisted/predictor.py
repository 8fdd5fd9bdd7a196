"""The prediction stage of MTAL: outputs for others' cells, and F^t at one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from coterie.assisted.aae.network import Params
from coterie.assisted.aae.pattern import Pattern as CellPattern
from coterie.assisted.aae.prediction import predict
from coterie.assisted.aggregation import Choice
from coterie.assisted.data.organisations import OwnDomain
from coterie.assisted.data.targets import Matrices, Matrix
from coterie.assisted.learner import Learner
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
from coterie.assisted.quality import quality
from coterie.assisted.settings.run import Settings
from coterie.assisted.state import OrganisationState, RoundChoice
from coterie.assisted.sums import Masks, means_of_rounds
from coterie.assisted.view import View, places_of
from coterie.core.data.interactions.cells import Cells
from coterie.core.protocol.client import Client
from coterie.core.protocol.step import Form
from coterie.core.tensors.keys import Key

T = TypeVar("T")


class Predictor(Client[OrganisationState, OwnDomain]):
    """An organisation that has models of all rounds, and so have its peers.

    Args:
        settings: with the reading's choices resolved.
    """

    form: ClassVar[Form] = "list"

    def __init__(self, settings: Settings) -> None:
        self.settings, self._matrices = settings, Matrices()
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
        view = self.view(mine, data)
        own = self._of_rounds(mine, data, view.own(cells), down.round)[data.id]
        if self.settings.protect.sum:
            of_round = means_of_rounds(data, down, own)
        else:
            of_round = self._given(view, down, own, cells)
        scores = self.learner(data).base.at(cells)
        for choice in mine.choices:
            if choice.round > down.round:
                break
            step = Choice(choice.eta, choice.weights).step(of_round(choice))
            scores = scores + step.to(scores)
        return scores

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
            found = self._views[data.id] = View(mine, data, self._matrices)
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
