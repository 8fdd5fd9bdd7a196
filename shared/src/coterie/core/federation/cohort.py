"""The clients of a round: who is asked and when, what is folded, counted and noted of it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.aggregation import Aggregation
from coterie.core.federation.collected import (
    Collected,
    Compared,
    Folded,
    Kept,
    counted,
    sends_something,
)
from coterie.core.federation.exchange import Answers, Exchange, Heard, Request
from coterie.core.federation.ledger import CLIENTS, Ledger
from coterie.core.privacy.releases import release_count, release_names
from coterie.core.privacy.sum_noise import Summed, SumNoise
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.journal import Journal, Release
from coterie.core.protocol.messages import Aligned, AnyStep
from coterie.core.protocol.uploads import UNBOUNDED, Fold
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class ExchangeCohort(Cohort):
    """Clients that take part, behind an exchange.

    Attributes:
        exchange: how they are reached.
        ids: ``(R,)`` ascending client ids.
        when: coordinates of the round, folded into every client key: block, round in it.
        ledger: counts what crosses.
        journal: takes what the round measures.
        whole: whether these are all clients of the block that are there.
        ending: whether the block ends: what is asked then must not be missed.
        aggregation: what stands in for the mean of what clients send; None for nothing.
        noise: what the server adds to their sums; None for nothing.
        masked: whether sums of releases leave behind masks.
        drawn_from: of how many clients these were drawn at random; None where they were not.
    """

    exchange: Exchange
    ids: Tensor
    when: tuple[int, ...]
    ledger: Ledger
    journal: Journal
    whole: bool = False
    ending: bool = False
    aggregation: Aggregation | None = None
    noise: SumNoise | None = None
    masked: bool = False
    drawn_from: int | None = None
    _past_rule: list[str] = field(default_factory=list, repr=False)
    _asked: dict[str, Iterator[int]] = field(
        default_factory=lambda: defaultdict(itertools.count), repr=False
    )

    def part(self, index: Tensor) -> ExchangeCohort:
        """The clients at the ascending positions ``index``, ``(K,)`` int64."""
        return replace(self, ids=self.ids[index], whole=False, drawn_from=None)

    def draw(self, count: int, key: Key) -> ExchangeCohort:
        """Draw so many clients of the cohort without replacement; the cohort, if it has no more."""
        if self.noise is not None and count < len(self):  # who is drawn hides who is not
            key = self.noise.draws(self.when, self.ids, key)
        drawn = super().draw(count, key)
        if drawn is self or self.drawn_from is not None:  # of a sample of a sample nothing is said
            return drawn
        return replace(drawn, drawn_from=len(self))

    def enrol(self) -> Tensor:
        """Let the newcomers of the cohort make their private state; return their ids."""
        return self.exchange.enrol(self.ids, self.when[0])

    def crossed(self, step: str, direction: str, field: str, messages: int, size: int) -> None:
        """Enter into the ledger what crossed beside messages, such as activations."""
        self.ledger.crossed(step, direction, field, messages, size)

    def summed(self, change: dict[str, Tensor], shares: Tensor | None = None) -> dict[str, Tensor]:
        """Σ shares_i change_i, or the run's rule over the changes in place of their mean."""
        self._past_rule.clear()
        if self.aggregation is None:
            return super().summed(change, shares)
        return self.aggregation.summed(change, shares, self.journal)

    def check_averaged(self) -> None:
        """Check that the rule of the run, if it has one, stood in for every mean.

        Raises:
            UserError: the server half looked at what clients sent, past the rule.
        """
        if self._past_rule:
            raise UserError(
                f"'aggregate.rule' did not stand in for what the server made of clients' answers "
                f"to '{self._past_rule[0]}', which were not averaged by ask(..., reduce=...) or "
                "cohort.summed: leave it out, or average so"
            )

    def _ask(self, step: AnyStep[Any, Any], down: Any, fold: Fold | None) -> Any:
        name = step.name
        draw = next(self._asked[name])
        collected = self._collecting(step, fold, draw)
        request = self._request(step, down, collected.fold, draw)
        released = len(release_names(step.up))
        # One tensor for all: small ones that stay between large ones that go would tear up memory.
        ids, count, n_silent, n_answered = torch.empty_like(self.ids), 0, 0, 0
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}  # without those whose training diverged, who learn of it
        for answers in self.exchange.ask(request):
            message = _received(request, answers)
            self._count(request, answers, message)
            released = max(released, release_count(message))
            refused |= answers.refused
            n_silent += len(answers.refused) if answers.silent else 0
            n_answered += answers.ids.numel()
            answers = counted(step, answers)
            failed |= answers.refused
            collected.add(answers)
            ids[count : count + answers.ids.numel()] = answers.ids
            count += answers.ids.numel()
        self.ledger.end_ask()
        least = int(step.up is not None and len(self) > 0)
        with self._released(name, released, ids[:count]):
            self.exchange.check(Heard(name, least, len(self), n_answered, n_silent))
        self.journal.answered(name, len(self), refused if least or not n_silent else {})
        for client, why in failed.items():
            self.journal.refuse(name, client, why)
        replies = collected.replies(ids[:count], failed)
        if self.aggregation is not None and fold is None and sends_something(step, replies):
            self._past_rule.append(name)
        return replies

    @contextmanager
    def _released(self, name: str, tensors: int, heard: Tensor) -> Iterator[None]:
        """Note what clients released, also where too few did and nothing is made of it."""
        counts = False
        try:
            yield
            counts = True
        finally:
            if len(self) and tensors:
                among, of_whom = self.drawn_from or len(self), heard if counts else heard[:0]
                self.journal.release(Release(name, tensors, self.ids, of_whom, among))

    def _collecting(self, step: AnyStep[Any, Any], fold: Fold | None, draw: int) -> Collected:
        """What becomes of the answers."""
        noise = self._noise_on(step, fold, draw)
        if fold is None:
            return Kept(step)
        if self.aggregation is None:
            return Folded(step, fold, noise)
        self.aggregation.check(fold)
        return Compared(step, fold, self.aggregation, self.journal, len(self))

    def _noise_on(
        self, step: AnyStep[Any, Any], fold: Fold | None, draw: int
    ) -> Callable[[Any, Tensor], Any] | None:
        """What the server adds to the sum of the answers, if it adds anything."""
        noise = self.noise
        if noise is None or not noise.covers(step.name) or not release_names(step.up):
            return None
        sums = noise.checked(step.name, fold)
        return lambda total, ids: noise(
            sums, total, Summed(step.name, self.when, draw, self.ending, ids)
        )

    def _request(self, step: AnyStep[Any, Any], down: Any, fold: Fold | None, draw: int) -> Request:
        """What the clients are asked. A transcript hashes uploads: of these none is summed up."""
        secret = self.masked and bool(release_names(step.up))
        if secret and (fold is None or fold.to_plain() is None):
            raise UserError(
                f"'aggregate.secret' hides sums, and this method's server looks at the answer of "
                f"each client to '{step.name}': leave it out"
            )
        fold = fold if self.exchange.folds or self.ledger.transcript is None else None
        made = Request(step, down, self.ids, self.when, draw, fold, self.whole, secret=secret)
        return replace(made, waits=step.up is None or self.ending)  # it changes what they have

    def _count(self, request: Request, answers: Answers, message: Any) -> None:
        """Enter into the ledger what these clients received, and the message that they sent."""
        name, refused = request.step.name, torch.tensor(list(answers.refused), dtype=torch.int64)
        asked, n_answered = torch.cat([answers.ids, refused]), answers.ids.numel()
        one_each = isinstance(request.down, Aligned)
        # An organisation is a party of its own, users are the clients; of a sum are all of them.
        alone = request.step.form == "list" and asked.numel() == 1
        client = str(int(asked)) if alone else CLIENTS
        down, count = request.down_for(asked), asked.numel()
        self.ledger.down(name, down, count, client=client, one_each=one_each)
        if message is not None:
            sizes = answers.sizes or None
            self.ledger.up(name, message, n_answered, client=client, sizes=sizes)


def _received(request: Request, answers: Answers) -> Any:
    """The uploads as they came; of those that were folded where the clients are, the sums."""
    if not answers.sizes:
        return answers.up
    assert request.fold is not None
    return request.fold.sums(answers.total, answers.ids.numel(), UNBOUNDED)[0]
