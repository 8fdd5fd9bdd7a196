"""Nobody between organisations that exchange nothing: it counts rounds and notes measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from coterie.assisted.apart.messages import KEEP_BEST, MEASURE, TRAIN, Epochs, Loss
from coterie.assisted.prediction_messages import Predictions
from coterie.assisted.scores import monitor_of, note_quality
from coterie.assisted.settings.run import Settings
from coterie.core.federation.selection import NO_ROUND, BestRound, Selecting
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.replies import ListReplies
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class ObserverState:
    """What the server knows.

    Attributes:
        round: t, rounds done.
        chosen: the best one on the validation data of all organisations.
    """

    round: int = 0
    chosen: BestRound = NO_ROUND


class Observer(Selecting[ObserverState]):
    """Lets organisations train, each for itself, and chooses one round for all of them.

    Args:
        settings: with the reading's choices resolved.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = self.limits = settings
        self.monitor = monitor_of(settings)

    def begin(self, key: Key) -> ObserverState:
        """Know nothing yet."""
        return ObserverState()

    def start_block(
        self, state: ObserverState, block: int, cohort: Cohort, key: Key
    ) -> ObserverState:
        """Let organisations begin."""
        cohort.enrol()
        return state

    def round(self, state: ObserverState, cohort: Cohort, key: Key) -> ObserverState:
        """Some epochs of everybody."""
        state = replace(state, round=state.round + 1)
        note_loss(cohort.ask(TRAIN, Epochs(state.round)), cohort.journal)
        return self.validated(state, cohort)

    def measure(self, state: ObserverState, cohort: Cohort, split: Split) -> None:
        """Let organisations measure their newest models, or test those of the best round."""
        replies = cohort.ask(MEASURE, Predictions(split, {}, {}, state.round))
        note_quality(replies, cohort.journal, split, self.settings)

    def keep(self, state: ObserverState, cohort: Cohort) -> ObserverState:
        """Let organisations keep their models of this round."""
        cohort.ask(KEEP_BEST, None)
        return state


def note_loss(replies: ListReplies[Loss], journal: Journal) -> None:
    """Note how well organisations fit their own ratings: the mean over all cells."""
    ups = list(replies.ups.values())
    journal.scalar("fed/clients", len(ups))
    if not ups:
        return
    losses = torch.stack([up.loss for up in ups]).double()
    sizes = torch.stack([up.cells for up in ups])
    journal.scalar("fed/loss", losses @ (sizes / sizes.sum()).double())
    journal.per_client("fed/loss", replies.ids, losses)
