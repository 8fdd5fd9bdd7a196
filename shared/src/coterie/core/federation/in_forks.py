"""Clients in forks of this process, which share its memory and answer chunks side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.federation.collected import counted, joined
from coterie.core.federation.crew import Crew
from coterie.core.federation.exchange import Answers, Request
from coterie.core.federation.federation import Federation
from coterie.core.federation.in_process import InProcess
from coterie.core.local_training.watching import Unwatchable, reading
from coterie.core.protocol.uploads import Fold
from coterie.core.tensors.device import CPU
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class _Asked:
    """What a `Request` says to all chunks alike; its step has a name that other processes know."""

    step: str
    down: Any
    when: tuple[int, ...]
    draw: int
    fold: Fold | None


@dataclass
class InForks(InProcess):
    """Clients whose chunks are answered in processes forked from this one, on the CPU.

    Private state is kept here, and answers come in the order of chunks, so that results are those
    of one process, whatever the number of others.

    Args:
        workers: how many processes; the other arguments are as of `InProcess`.
        crew: these processes, where there are some already.

    Raises:
        UserError: the clients have the list form, or keep something beside their private state.
    """

    workers: int = 2
    crew: Crew | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.client.concurrent:
            raise UserError(
                "'engine.workers' is for methods whose clients are stacked and keep nothing beside "
                "their private state, which this one's do not promise: leave it at 1"
            )
        if self.crew is None and self.device == CPU:
            steps = self.client.steps().values()
            kinds = [kind for step in steps for kind in (step.down, step.up)]
            kinds.append(self.client._types[0])
            named = dict.fromkeys(kind for kind in kinds if isinstance(kind, type))
            known = partial(_known, self.client, *self.middleware)
            self.crew = Crew(self.workers, partial(_answer, self), known, list(named))

    def ask(self, request: Request) -> Iterator[Answers]:
        """Let clients answer, each chunk as it would be answered here.

        Raises:
            TypeError: the clients have no such step.
            UserError: a process was killed, or cannot be had.
        """
        if self.crew is None or self.is_list:
            yield from super().ask(request)
            return
        self._check(request)
        fold = request.fold
        if fold is not None and fold.to_plain() is None:  # it is not made of values alone
            fold = None
        name, down, when = request.step.name, request.down, request.when
        asked = _Asked(name, down, when, request.draw, fold)
        given = self._given(request)
        for _, (answers, new, left) in self.crew.answers((asked, bool(self.middleware)), given):
            if left is not None:
                self.client.found(left)
            if new is not None:
                self.store.commit(answers.ids, new)
            yield answers

    @property
    def seconds_elsewhere(self) -> float:
        """Processor time of the forked processes so far."""
        return 0.0 if self.crew is None else self.crew.seconds

    def rest(self) -> None:
        """End the processes."""
        if self.crew is not None:
            self.crew.rest()

    def _given(self, request: Request) -> Iterator[tuple[Tensor, Any]]:
        """Who answers in each chunk, with their private state."""
        for index in self.cut(self.data_of(request.ids, request.when[0]), request.down):
            ids = request.ids[index]
            yield ids, self.store.take(ids)


def clients_here(federation: Federation, secrets: Callable[[Tensor], Key]) -> InProcess:
    """The clients of a federation in this process, or in forks of it where there are workers.

    Args:
        federation: of the clients.
        secrets: see `InProcess`.

    Raises:
        UserError: there is no client half, or it cannot be run by several workers.
    """
    if federation.client is None:
        raise UserError("this federation has no client half: say by which exchange it is asked")
    several = federation.workers > 1
    return (partial(InForks, workers=federation.workers) if several else InProcess)(
        federation.client,
        federation.blocks,
        secrets,
        federation.chunk,
        federation.middleware,
        federation.bounds,
        device=federation.device,
    )


def in_this_process(clients: InProcess) -> InProcess:
    """The same clients without middleware, whose steps run in this very process.

    For who puts something into the client half to see what passes: other processes would put it
    into their own.
    """
    return InProcess(
        clients.client,
        clients.blocks,
        clients.secrets,
        clients.chunk,
        bounds=clients.bounds,
        device=clients.device,
        kept=clients.store,
    )


def _answer(clients: InForks, common: Any, given: Any) -> tuple[Answers, Any, Any]:
    """Let a chunk answer, in a process of the crew; what it sends is summed up there.

    Returns:
        Answers, new private state, and what steps left beside these.
    """
    (asked, passes), (ids, mine) = common, given
    clients.client.left()  # of before this process was forked
    step = clients.client.steps()[asked.step]
    request = Request(step, asked.down, ids, asked.when, asked.draw, asked.fold)
    here = clients if passes else replace(clients, middleware=())
    tried = here.tried(request, ids, here.data_of(ids, request.when[0]), mine)
    answers, new = here.judged(request, tried)
    diverged = counted(step, answers) is not answers  # which only who has asked may tell
    if request.fold is not None and answers.up is not None and not diverged:
        answers = joined(request, [answers])
    return answers, new, clients.client.left()


def _known(*parts: Any) -> Any:
    """What a client half and middleware compute with, to be compared; None = it cannot be told."""
    try:
        return reading(*parts)
    except Unwatchable:
        return None
