"""Users who are asked for one by one: those who wait at the same time are listed together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from coterie.core.serve.guard import Refused
from coterie.core.serve.lists import Answer, listed
from coterie.core.serve.opened import OpenedRun, State


class _Asked(NamedTuple):
    user: str
    top: int
    answer: Future[Answer]


class Together:
    """Requests for the list of one user each.

    A list costs little more for many users than for one. So the computing thread, when it is free,
    takes whoever waits for a list of that length; nobody waits for others to come. Where numbers
    depend on who else is asked for, each is listed alone: an answer is that of a request alone.

    Args:
        run: that is served.
    """

    def __init__(self, run: OpenedRun) -> None:
        self._run = run
        self._waiting: deque[_Asked] = deque()  # asked for by the event loop, taken by the thread

    def ask(self, user: str, top: int) -> Future[Answer]:
        """Ask for the list of a user; see `coterie.core.serve.lists.listed`.

        Args:
            user: id.
            top: how many items it has, at most.

        Returns:
            The answer, or a `Refused` as its exception. Who cancels it before its turn costs
            nothing.
        """
        asked = _Asked(user, top, Future())
        self._waiting.append(asked)
        # A turn for each: who came before another request has a turn before it.
        self._run.submit(self._turn)
        return asked.answer

    def _turn(self, state: State) -> None:
        """List who waits longest, and with them whoever can be; there may be nobody left."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not waiting:
            return
        top = waiting[0].top if state.recommender.alike else None
        now = [one for one in waiting if one is waiting[0] or one.top == top]
        self._waiting.extendleft(one for one in reversed(waiting) if one not in now)
        now = [one for one in now if one.answer.set_running_or_notify_cancel()]
        if now:
            _answer(state, now)


def _answer(state: State, asked: Sequence[_Asked]) -> None:
    """Answer everybody of a batch; what goes wrong for one of them is theirs alone."""
    users = list(dict.fromkeys(one.user for one in asked))
    try:
        found = dict(zip(users, listed(state, users, asked[0].top), strict=True))
    except Exception as error:
        if len(asked) == 1:
            asked[0].answer.set_exception(error)
            return
        for one in asked:
            _answer(state, [one])
        return
    for one in asked:
        answer = found[one.user]
        if isinstance(answer, Refused):
            one.answer.set_exception(answer)
        else:
            one.answer.set_result(answer)
