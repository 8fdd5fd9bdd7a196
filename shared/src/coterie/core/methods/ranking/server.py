"""What the servers of the federated baselines share: rounds, validation, the best round, tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.methods.ranking.client import KEEP_BEST, RankingReport, Split
from coterie.core.metrics.clients import summarise
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Down
from coterie.core.protocol.replies import Replies
from coterie.core.protocol.server import Decision, Server
from coterie.core.protocol.step import Step
from coterie.core.tensors.keys import Key

D = TypeVar("D", bound=Down)


class RoundSettings(Protocol):
    """What the rounds of every method need."""

    @property
    def rounds(self) -> int:
        """Most rounds."""

    @property
    def patience(self) -> int:
        """Rounds without a better validation before the end."""

    @property
    def participation(self) -> float:
        """Share of the clients in a round."""


@dataclass(frozen=True)
class RankingState:
    """What the server knows.

    Attributes:
        public: the public part, by name.
        best: the same at the best validation round.
        round: rounds done.
        best_score: validation recall of ``best``.
        best_round: its round, from 1.
    """

    public: dict[str, Tensor]
    best: dict[str, Tensor]
    round: int = 0
    best_score: float = -1.0
    best_round: int = 0


class RankingServer(Server[RankingState], Generic[D]):
    """Rounds of training, each followed by a full ranking of validation on all clients.

    The best round is that of the highest Recall@k on validation, for the first k.

    Args:
        settings: of the rounds.
        lengths: the k of Recall@k and NDCG@k.

    Attributes:
        evaluate: the step that ranks all items.
        fold_in: the step that reads the validation items.
    """

    evaluate: Step[D, RankingReport]
    fold_in: Step[D, None]

    def __init__(self, settings: RoundSettings, lengths: Sequence[int]) -> None:
        self.limits, self.lengths = settings, tuple(lengths)

    @property
    def monitor(self) -> str:
        """Name of the validation metric that decides on the best round."""
        return f"eval/recall@{self.lengths[0]}"

    def start(self, key: Key) -> dict[str, Tensor]:
        """Make the public part before the first round."""
        raise NotImplementedError

    def open(self, public: dict[str, Tensor], cohort: Cohort) -> dict[str, Tensor]:
        """Prepare the enrolled clients for the first round. Default: nothing."""
        return public

    def train(self, state: RankingState, cohort: Cohort, key: Key) -> dict[str, Tensor]:
        """Let the round's clients train; give the new public part."""
        raise NotImplementedError

    def table(self, public: dict[str, Tensor], split: Split = "valid") -> D:
        """Make the message by which clients score all items."""
        raise NotImplementedError

    def keep_best(self, public: dict[str, Tensor], cohort: Cohort) -> None:
        """Let clients keep this round's state, the best so far."""
        cohort.ask(KEEP_BEST, None)

    def begin(self, key: Key) -> RankingState:
        """Draw the public part."""
        public = self.start(key)
        return RankingState(public, public)

    def start_block(
        self, state: RankingState, block: int, cohort: Cohort, key: Key
    ) -> RankingState:
        """Enrol newcomers."""
        cohort.enrol()
        public = self.open(state.public, cohort)
        return replace(state, public=public, best=public)

    def round(self, state: RankingState, cohort: Cohort, key: Key) -> RankingState:
        """Train on a share of the clients, then validate on all."""
        selected = cohort.sample(self.limits.participation, key.fold("sample"))
        public = self.train(state, selected, key)
        if any(value.is_floating_point() and not _finite(value) for value in public.values()):
            raise _diverged(state.round + 1)
        state = replace(state, public=public, round=state.round + 1)
        reports = self._measure(cohort, public, "valid", "eval")
        score = round(cohort.journal.scalars[self.monitor], 5)  # ties keep the earlier round
        self._note_worst(cohort, reports)
        if score > state.best_score:
            self.keep_best(public, cohort)
            state = replace(state, best=public, best_score=score, best_round=state.round)
        return state

    def end_block(self, state: RankingState, cohort: Cohort, key: Key) -> RankingState:
        """Let clients read their validation items, then test the best round."""
        cohort.ask(self.fold_in, self.table(state.best, "test"))
        self.test(state, cohort)
        cohort.journal.scalar("test/best_round", state.best_round)
        return state

    def test(self, state: RankingState, cohort: Cohort) -> None:
        """Test the best round on all clients."""
        self._measure(cohort, state.best, "test", "test")

    def serve(self, state: RankingState) -> D:
        """Give the public part of the best round."""
        return self.table(state.best, "test")

    def stop(self, state: RankingState, history: Sequence[dict[str, float]]) -> Decision:
        """End after the last round, or ``patience`` rounds without a better validation."""
        waited = state.round - state.best_round
        done = state.round >= self.limits.rounds or waited >= self.limits.patience
        return "block" if done else "go"

    def report_training(self, cohort: Cohort, replies: Replies, loss: Tensor | None) -> None:
        """Note the clients of a round and their mean training loss.

        Args:
            cohort: of the round.
            replies: to the ask.
            loss: sum of their losses; None where nobody answered.

        Raises:
            UserError: every answer was refused.
        """
        if replies.failed and not replies.ids.numel():
            raise _diverged(cohort.when[-1])
        cohort.journal.scalar("fed/clients", len(replies))
        if loss is not None:
            cohort.journal.scalar("fed/loss", loss / len(replies))

    def _measure(
        self, cohort: Cohort, public: dict[str, Tensor], split: Split, prefix: str
    ) -> RankingReport | None:
        replies = cohort.ask(self.evaluate, self.table(public, split))
        for name in ("recall", "ndcg"):
            for column, k in enumerate(self.lengths):
                metric = f"{prefix}/{name}@{k}"
                if replies.up is None:
                    cohort.journal.scalar(metric, 0.0)
                    continue
                values = getattr(replies.up, name)[:, column]
                cohort.journal.scalar(metric, _mean(values))
                cohort.journal.per_client(metric, replies.ids, values)
        return replies.up

    def _note_worst(self, cohort: Cohort, reports: RankingReport | None) -> None:
        if reports is None:
            return
        summary = summarise(reports.ndcg[:, -1])
        cohort.journal.scalar(f"eval/ndcg@{self.lengths[-1]}_worst10", summary.worst10)


def _finite(values: Tensor) -> bool:
    return bool(values.sum().isfinite())


def _diverged(number: int) -> UserError:
    return UserError(f"the baseline has diverged in round {number}: lower its learning rates")


def _mean(values: Tensor) -> float:
    """Mean over the clients that had something to find."""
    return float(values.nanmean()) if bool((~torch.isnan(values)).any()) else 0.0
