"""The server half of the method ``ensemble``: FedAvg, then one round in which nothing is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from coterie.core.errors import UserError
from coterie.core.federation.selection import NO_ROUND, BestRound
from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.model_server import ModelServer, ServerModel
from coterie.core.methods.kit.uploads import Weighted, mean_added, noted
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.protocol.cohort import Cohort
from coterie.core.tensors.keys import Key
from coterie.msmt.ensemble.messages import (
    EVALUATE,
    RECEIVE,
    TRAIN,
    TUNE,
    UPDATE,
    Measure,
    RoundModel,
    Starts,
    TuneFrom,
)
from coterie.msmt.models.base import MultiTask


@dataclass(frozen=True)
class EnsembleState(ServerModel):
    """State of the server; ``own`` is what the scenarios' own networks start from.

    Attributes:
        best: FedAvg's best round so far, by the mean validation AUC of the scenarios.
        best_weights: its model; the first one before a round was measured.
        tuned: whether the last round, which fine-tunes, is done.
    """

    best: BestRound = field(default=NO_ROUND, kw_only=True)
    best_weights: Params = field(kw_only=True)
    tuned: bool = field(default=False, kw_only=True)


class EnsembleServer(ModelServer[EnsembleState]):
    """Server whose scenarios mix a network of their own with one fine-tuned from FedAvg's.

    All rounds but the last are FedAvg's, beside which scenarios train networks that they keep. In
    the last one they fine-tune FedAvg's best round, and upload nothing.
    """

    averages = sums = True

    def __init__(self, build: Callable[[], MultiTask], training: FedAvgSettings) -> None:
        super().__init__(build, training)
        if training.rounds < 2:
            raise UserError(
                "'rounds' must be 2 or more in ensemble: the last one fine-tunes what those before "
                "it averaged"
            )

    def begin(self, key: Key) -> EnsembleState:
        """Draw FedAvg's first model, and another that the scenarios' own networks start from."""
        weights = self.initial(key)
        own = self.initial(key.fold("alone"))
        return EnsembleState(weights, own=own, best_weights=weights)

    def start_block(
        self, state: EnsembleState, block: int, cohort: Cohort, key: Key
    ) -> EnsembleState:
        """Enrol newcomers and give them what their own networks start from."""
        newcomers = cohort.enrol()
        if newcomers.numel():
            places = torch.searchsorted(cohort.ids, newcomers)
            cohort.part(places).ask(RECEIVE, self.starts(state))
        return state

    def starts(self, state: EnsembleState) -> Starts:
        """What newcomers receive."""
        return Starts(state.own, {})

    def round(self, state: EnsembleState, cohort: Cohort, key: Key) -> EnsembleState:
        """One round of training, or, as the last one, the fine-tuning."""
        number = cohort.when[-1]
        if number >= self.settings.rounds:
            state = replace(state, weights=state.best_weights, tuned=True)
            cohort.ask(TUNE, TuneFrom(self.measured_weights(state), state.best.round))
            cohort.journal.scalar("fed/clients", len(cohort))
            self.evaluate_if_due(state, cohort)
            return state
        state = self.trained(state, cohort.sample(self.settings.fraction, key.fold("sample")))
        self.evaluate_if_due(state, cohort)
        return self.judged(state, cohort, number)

    def trained(self, state: EnsembleState, chosen: Cohort) -> EnsembleState:
        """A round of FedAvg."""
        down = RoundModel(state.weights, chosen.when[-1], state.best.round)
        replies = chosen.ask(UPDATE, down, reduce=Weighted(self.settings.weighting))
        if (total := noted(replies, chosen.journal)) is not None:
            state = replace(state, weights=mean_added(state.weights, total))
        return state

    def judged(self, state: EnsembleState, cohort: Cohort, number: int) -> EnsembleState:
        """Keep the round's model if it is the best one so far; of those not measured the last."""
        monitor = self.monitor
        name = monitor.key.replace("eval/", "eval/global_")
        score = cohort.journal.scalars.get(name, math.nan)
        best = state.best.seen(score, number, monitor)
        if best is state.best and best.measured:
            return state
        kept = best if best.measured else BestRound(number)
        return replace(state, best=kept, best_weights=state.weights)

    def test(self, state: EnsembleState, cohort: Cohort) -> None:
        """Let every scenario measure w, its mix and, in the end, both networks of that."""
        replies = cohort.ask(EVALUATE, Measure(self.measured_weights(state), state.tuned))
        if (up := replies.up) is not None:
            self.note_measures(up, replies.ids, cohort)
            cohort.journal.scalar("msmt/own_weight", up.weight.mean())
            cohort.journal.per_client("msmt/own_weight", replies.ids, up.weight)

    def measured_weights(self, state: EnsembleState) -> Params:
        """What scenarios need of w to measure and to fine-tune it."""
        return state.weights

    def reopen(self, state: EnsembleState, history: Sequence[dict[str, float]]) -> EnsembleState:
        """Refuse to go on after the last round.

        Raises:
            UserError: it has fine-tuned.
        """
        raise UserError("its last round fine-tuned what was averaged, and cannot be taken back")

    def change_rounds(
        self, state: EnsembleState, history: Sequence[dict[str, float]], rounds: int
    ) -> None:
        """Accept another number of rounds while there is one left, which fine-tunes.

        Raises:
            UserError: there is none.
        """
        if len(history) >= rounds:
            raise UserError(f"it has done {len(history)} already, and the last one fine-tunes")


class PairServer(EnsembleServer):
    """The control: the partner is a second network of the scenario's own. Nothing is averaged."""

    averages = sums = False

    def starts(self, state: EnsembleState) -> Starts:
        """What both networks of newcomers start from."""
        return Starts(state.own, state.weights)

    def trained(self, state: EnsembleState, chosen: Cohort) -> EnsembleState:
        """A round in which scenarios train by themselves."""
        replies = chosen.ask(TRAIN, None)
        chosen.journal.scalar("fed/clients", replies.ids.numel())
        return state

    def judged(self, state: EnsembleState, cohort: Cohort, number: int) -> EnsembleState:
        """There is no common model to keep: scenarios know their best rounds."""
        return state

    def measured_weights(self, state: EnsembleState) -> Params:
        """Nothing."""
        return {}
