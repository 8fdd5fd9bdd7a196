"""The clients of a round: who is asked and when, what is folded, counted and noted of it."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation.exchange import Answers, Exchange, Heard, Request
from coterie.core.federation.ledger import CLIENTS, Ledger, field_sizes
from coterie.core.privacy.releases import release_count, release_names
from coterie.core.protocol.cohort import Cohort
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import Aligned, AnyStep
from coterie.core.protocol.replies import FoldedReplies, ListReplies, StackedReplies
from coterie.core.protocol.uploads import Bounds, Fold
from coterie.core.tensors import tree
from coterie.core.tensors.ordering import sorted_rows

_ANY = Bounds(math.inf, 2**62)  # it has been judged


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
    """

    exchange: Exchange
    ids: Tensor
    when: tuple[int, ...]
    ledger: Ledger
    journal: Journal
    whole: bool = False
    ending: bool = False
    _asked: dict[str, Iterator[int]] = field(
        default_factory=lambda: defaultdict(itertools.count), repr=False
    )

    def part(self, index: Tensor) -> ExchangeCohort:
        """The clients at the ascending positions ``index``, ``(K,)`` int64."""
        return replace(self, ids=self.ids[index], whole=False)

    def enrol(self) -> Tensor:
        """Let the newcomers of the cohort make their private state; return their ids."""
        return self.exchange.enrol(self.ids, self.when[0])

    def crossed(self, step: str, direction: str, field: str, messages: int, size: int) -> None:
        """Enter into the ledger what crossed beside messages, such as activations."""
        self.ledger.crossed(step, direction, field, messages, size)

    def _ask(self, step: AnyStep[Any, Any], down: Any, fold: Fold | None) -> Any:
        name = step.name
        request = self._request(step, down, fold)
        released = len(release_names(step.up))
        kept: list[Answers] = []
        # One tensor for all: small ones that stay between large ones that go would tear up memory.
        ids, count, n_silent, n_answered = torch.empty_like(self.ids), 0, 0, 0
        failed: dict[int, str] = {}
        refused: dict[int, str] = {}  # without those whose training diverged, who learn of it
        total = None
        for answers in self.exchange.ask(request):
            message = _received(request, answers)
            self._count(request, answers, message)
            released = max(released, release_count(message))
            refused |= answers.refused
            n_silent += len(answers.refused) if answers.silent else 0
            n_answered += answers.ids.numel()
            answers = counted(step, answers)
            failed |= answers.refused
            if fold is not None and answers.ids.numel():
                part = folded(fold, step, answers)
                total = part if total is None else fold.merge(total, part)
            ids[count : count + answers.ids.numel()] = answers.ids
            count += answers.ids.numel()
            if fold is None:  # else memory is bounded by a chunk
                kept.append(answers)
        self.ledger.end_ask()
        least = int(step.up is not None and len(self) > 0)
        self.exchange.check(Heard(name, least, len(self), n_answered, n_silent))
        self.journal.answered(name, len(self), refused if least or not n_silent else {})
        if len(self) and released:
            self.journal.release(name, released)
        for client, why in failed.items():
            self.journal.refuse(name, client, why)
        ids = ids[:count]
        if fold is not None:
            return FoldedReplies(sorted_rows(ids[None])[0], failed, total)
        if step.form == "list":
            return _listed(ids, failed, kept)
        return _stacked(ids, failed, kept)

    def _request(self, step: AnyStep[Any, Any], down: Any, fold: Fold | None) -> Request:
        """What the clients are asked; a step without an answer only ever changes what they have."""
        waits = step.up is None or self.ending
        draw = next(self._asked[step.name])
        return Request(step, down, self.ids, self.when, draw, fold, self.whole, waits)

    def _count(self, request: Request, answers: Answers, message: Any) -> None:
        """Enter into the ledger what these clients received, and the message that they sent."""
        name, refused = request.step.name, torch.tensor(list(answers.refused), dtype=torch.int64)
        asked, n_answered = torch.cat([answers.ids, refused]), answers.ids.numel()
        one_each = isinstance(request.down, Aligned)
        # An organisation is a party of its own, users are the clients.
        client = str(int(asked)) if request.step.form == "list" else CLIENTS
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
    return request.fold.sums(answers.total, answers.ids.numel(), _ANY)[0]


def counted(step: AnyStep[Any, Any], answers: Answers) -> Answers:
    """Leave out the uploads of clients whose training diverged, as a field of them says.

    They keep their new private state, to learn of it.
    """
    if step.diverged is None or answers.up is None:
        return answers
    up, ids = answers.up, answers.ids
    lost = getattr(up, step.diverged).reshape(-1)
    if not bool(lost.any()):
        return answers
    reasons = answers.refused | dict.fromkeys(ids[lost].tolist(), "its training diverged")
    rest = (~lost).nonzero().flatten()
    up = tree.take(up, rest) if rest.numel() else None
    return replace(answers, ids=ids[rest], up=up, refused=reasons)


def folded(fold: Fold, step: AnyStep[Any, Any], answers: Answers) -> Any:
    """What a fold makes of the uploads of some clients, at least one."""
    if answers.up is None:
        return answers.total
    return fold.of(tree.as_stack(answers.up) if step.form == "list" else answers.up)


def joined(request: Request, parts: Sequence[Answers]) -> Answers:
    """One answer of those of several chunks, folded where the request has a fold.

    What is folded where the clients are is folded here, and the server folds the folded; another
    order of sums would round differently.
    """
    step, fold = request.step, request.fold
    made: Any = None
    sizes = Counter[str]()
    refused: dict[int, str] = {}
    ids = [request.ids[:0]]
    for part in parts:
        if fold is not None:
            sizes.update({} if part.up is None else field_sizes(part.up))
            part = counted(step, part)
        refused |= part.refused
        ids.append(part.ids)
        if part.up is None:
            continue
        one = part.up if fold is None else folded(fold, step, part)
        if made is not None:
            one = tree.concatenate(made, one) if fold is None else fold.merge(made, one)
        made = one
    found = torch.cat(ids)
    if fold is None:
        return Answers(found, made, refused)
    return Answers(found, None, refused, made, dict(sizes))


def _listed(ids: Tensor, failed: dict[int, str], kept: list[Answers]) -> ListReplies[Any]:
    ups = {int(one.ids): one.up for one in kept if one.up is not None}
    return ListReplies(ids.sort().values, failed, {client: ups[client] for client in sorted(ups)})


def _stacked(ids: Tensor, failed: dict[int, str], kept: list[Answers]) -> StackedReplies[Any]:
    ups = [one.up for one in kept if one.up is not None]
    order = torch.argsort(ids)
    if not ups:
        return StackedReplies(ids[order], failed)
    up = tree.concatenate(*ups)
    return StackedReplies(ids[order], failed, tree.take(up, order))
