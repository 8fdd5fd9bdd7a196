"""What becomes of answers while they arrive: kept, folded at once, or compared by a rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.filesize import decimal
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation import aggregation
from coterie.core.federation.aggregation import Aggregation, Cast
from coterie.core.federation.exchange import Answers, Request
from coterie.core.federation.ledger import field_sizes
from coterie.core.privacy.noise import upload_norms
from coterie.core.privacy.releases import release_names
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.messages import AnyStep
from coterie.core.protocol.replies import FoldedReplies, ListReplies, Replies, StackedReplies
from coterie.core.protocol.uploads import Fold
from coterie.core.tensors import tree
from coterie.core.tensors.device import machine_memory
from coterie.core.tensors.ordering import sorted_rows

_COPIES = 3
"""What comparing holds of what it compares: the parts, all of them, all of them bounded."""


class Collected(ABC):
    """Answers to one ask, as far as they have come.

    Attributes:
        fold: what an exchange may make of uploads where the clients are.
    """

    fold: Fold | None = None

    @abstractmethod
    def add(self, answers: Answers) -> None:
        """Take those of some clients, without who diverged."""

    @abstractmethod
    def replies(self, ids: Tensor, failed: dict[int, str]) -> Replies:
        """What the server gets; ``ids``, ``(A,)``, are in the order in which they came."""


class Kept(Collected):
    """All uploads, for the server to see."""

    def __init__(self, step: AnyStep[Any, Any]) -> None:
        self.step = step
        self._kept: list[Answers] = []

    def add(self, answers: Answers) -> None:
        """Keep them."""
        self._kept.append(answers)

    def replies(self, ids: Tensor, failed: dict[int, str]) -> Replies:
        """In the form of the clients."""
        if self.step.form == "list":
            return _listed(ids, failed, self._kept)
        return _stacked(ids, failed, self._kept)


class Folded(Collected):
    """One value of all uploads, so that memory is bounded by a chunk.

    Args:
        step: that was asked for.
        fold: the method's.
        noise: adds to a total over clients ``(A,)`` what the server adds; None for nothing.
    """

    def __init__(
        self, step: AnyStep[Any, Any], fold: Fold, noise: Callable[[Any, Tensor], Any] | None
    ) -> None:
        self.step, self.fold, self.noise = step, fold, noise
        self._total: Any = None

    def add(self, answers: Answers) -> None:
        """Fold them."""
        assert self.fold is not None
        if answers.ids.numel():
            part = folded(self.fold, self.step, answers)
            self._total = part if self._total is None else self.fold.merge(self._total, part)

    def replies(self, ids: Tensor, failed: dict[int, str]) -> Replies:
        """The total."""
        total = self._total
        if self.noise is not None and total is not None:
            total = self.noise(total, ids)
        return FoldedReplies(sorted_rows(ids[None])[0], failed, total)


class Compared(Collected):
    """What a rule makes of uploads, or of the means of nodes, in place of a fold.

    Args:
        step: that was asked for.
        fold: the method's.
        rule: stands in for the mean.
        journal: of the round.
        n_asked: clients; what they send must fit into memory.
    """

    def __init__(
        self,
        step: AnyStep[Any, Any],
        fold: Fold,
        rule: Aggregation,
        journal: Journal,
        n_asked: int,
    ) -> None:
        self.step, self.method, self.rule, self.journal = step, fold, rule, journal
        self.fold = fold if rule.settings.over == "nodes" else None
        self._n_asked = n_asked
        self._casts: list[Cast] = []
        self._ids: list[Tensor] = []
        self._total: Any = None
        self._bytes = self._heard = 0

    def add(self, answers: Answers) -> None:
        """Keep them to be compared, or sum them at once where each is only shortened.

        Raises:
            UserError: those of all clients would not fit into memory.
        """
        if not (count := answers.ids.numel()):
            return
        if answers.up is None:
            cast = Cast.of_node(self.method, answers.total, count)
        else:
            up = tree.as_stack(answers.up) if self.step.form == "list" else answers.up
            cast = Cast.of_clients(self.method, up, count)
        if not self.rule.compares:
            part = self.rule.total(self.method, cast, self.journal)
            self._total = part if self._total is None else self.method.merge(self._total, part)
            return
        if answers.up is not None:
            self._bytes += sum(map(tree.nbytes, _leaves(cast.upload)))
            self._heard += count
            self._check_memory(self._bytes // self._heard)
        self._casts.append(cast)
        if answers.up is not None:
            self._ids.append(answers.ids)

    def replies(self, ids: Tensor, failed: dict[int, str]) -> Replies:
        """What the rule makes of them, whatever the order in which they came."""
        total = self._total
        if self._casts:
            known = sum(one.numel() for one in self._ids) == ids.numel()
            order = torch.cat(self._ids).argsort() if known and self._ids else None
            cast = aggregation.together(self._casts, order)
            total = self.rule.total(self.method, cast, self.journal)
        return FoldedReplies(sorted_rows(ids[None])[0], failed, total)

    def _check_memory(self, one: int) -> None:
        wanted, here = _COPIES * one * self._n_asked, machine_memory()
        if self.rule.settings.rule.endswith("krum"):
            wanted += 3 * 8 * self._n_asked**2
        if wanted > here:
            raise UserError(
                f"aggregate.rule {self.rule.settings.rule} compares what {self._n_asked:,} clients "
                f"send, which takes about {decimal(wanted)} of memory, and this machine has "
                f"{decimal(here)}: let fewer take part in a round, or bound norms alone, by "
                "aggregate.norm_bound"
            )


def sends_something(step: AnyStep[Any, Any], replies: Replies) -> bool:
    """Whether uploads that were kept hold releases which are not all 0."""
    if not release_names(step.up) or not len(replies):
        return False
    if isinstance(replies, ListReplies):
        return True
    norms = upload_norms(replies.up) if isinstance(replies, StackedReplies) else None
    return norms is not None and bool((norms > 0).any())


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


def _leaves(up: Any) -> Iterator[Any]:
    return (leaf for _, leaf in tree.values(up))


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
