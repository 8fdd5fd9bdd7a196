"""What the servers of the federated baselines share: rounds, validation, the best round, tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.selection import NO_ROUND, BestRound, Limits, Selecting
from coterie.core.methods.ranking.client import KEEP_BEST
from coterie.core.metrics.clients import mean_of_known, worst_decile
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import RankingReport, Split
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.messages import Down, Step
from coterie.core.protocol.replies import FoldedReplies
from coterie.core.protocol.server import ServesItems
from coterie.core.protocol.uploads import Fold
from coterie.core.settings.sections import ValidationSettings
from coterie.core.tensors.keys import Key

D = TypeVar("D", bound=Down)


class RoundSettings(Limits, Protocol):
    """What the rounds of every method need."""

    @property
    def participation(self) -> float:
        """Share of the clients in a round."""
        ...

    @property
    def validation(self) -> ValidationSettings:
        """Which rounds are validated, and by how many clients."""
        ...


@dataclass(frozen=True)
class RankingState:
    """What the server knows.

    Attributes:
        public: the public part, by name.
        best: the same at the best validation round.
        round: rounds done.
        chosen: which round ``best`` is of, and its validation recall.
    """

    public: dict[str, Tensor]
    best: dict[str, Tensor]
    round: int = 0
    chosen: BestRound = NO_ROUND


class RankingServer(Selecting[RankingState], ServesItems[RankingState], Generic[D]):
    """Rounds of training, followed by a full ranking of validation.

    The best round is that of the highest Recall@k on validation, for the first k.

    Args:
        settings: of the method.
        n_items: number of items.
        lengths: the k of Recall@k and NDCG@k.
        dtype: of all parameters.

    Attributes:
        evaluate: the step that ranks all items.
        fold_in: the step that reads the validation items.
    """

    serves_all_alike = True
    settings: RoundSettings
    limits: RoundSettings
    evaluate: Step[D, RankingReport]
    fold_in: Step[D, None]

    def __init__(
        self,
        settings: RoundSettings,
        n_items: int,
        lengths: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.settings = self.limits = settings
        self.validation = settings.validation
        self.n_items, self.lengths, self.dtype = n_items, tuple(lengths), dtype
        self.monitor = Monitor(f"eval/recall@{lengths[0]}", digits=5)

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
        """Train on a share of the clients, then validate where it is due."""
        selected = cohort.sample(self.settings.participation, key.fold("sample"))
        public = self.train(state, selected, key)
        if any(value.is_floating_point() and not _finite(value) for value in public.values()):
            raise _diverged(state.round + 1)
        return self.validated(replace(state, public=public, round=state.round + 1), cohort)

    def keep(self, state: RankingState, cohort: Cohort) -> RankingState:
        """Keep the public part; clients keep their state of this round."""
        cohort.ask(KEEP_BEST, None)
        return replace(state, best=state.public)

    def end_block(self, state: RankingState, cohort: Cohort, key: Key) -> RankingState:
        """Let clients read their validation items, then test the best round."""
        state = self.settled(state, cohort)
        cohort.ask(self.fold_in, self.table(state.best, "test"))
        return self.conclude(state, cohort)

    def serve(self, state: RankingState, user: int | None, cohort: Cohort) -> D:
        """Give the public part of the best round."""
        return self.table(state.best, "test")

    def measure(self, state: RankingState, cohort: Cohort, split: Split) -> None:
        """Let clients rank all items, by this round's public part or to test by the best."""
        testing, journal = split == "test", cohort.journal
        table = self.table(state.best if testing else state.public, split)
        asked = cohort if testing else self.validators(cohort)
        replies, where = asked.ask(self.evaluate, table), "test" if testing else "eval"
        if replies.up is None:
            return
        for name, values in replies.up.by_name(self.lengths).items():
            journal.known(f"{where}/{name}", mean_of_known(values))
            journal.per_client(f"{where}/{name}", replies.ids, values)
        if not testing:
            worst = worst_decile(replies.up.ndcg[:, -1])
            journal.known(f"eval/ndcg@{self.lengths[-1]}_worst10", worst)

    def trained(
        self, cohort: Cohort, step: Step[D, Any], down: D, fold: Fold
    ) -> FoldedReplies[Any]:
        """Ask the clients of a round, and note how many trained and their mean loss.

        Args:
            cohort: of the round.
            step: to ask for.
            down: the message.
            fold: gives the sum of the losses as ``loss``, beside others.

        Raises:
            UserError: every answer was refused.
        """
        replies: FoldedReplies[Any] = cohort.ask(step, down, reduce=fold)
        if replies.failed and not len(replies):
            raise _diverged(cohort.when[-1])
        cohort.journal.scalar("fed/clients", len(replies))
        if replies.total is not None:
            cohort.journal.scalar("fed/loss", replies.total.loss / len(replies))
        return replies


def _finite(values: Tensor) -> bool:
    return bool(values.sum().isfinite())


def _diverged(number: int) -> UserError:
    return UserError(f"the baseline has diverged in round {number}: lower its learning rates")
