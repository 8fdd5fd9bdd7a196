"""Lists of users of a run, and of someone new, as they are answered over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from coterie.core.errors import UserError
from coterie.core.front.newcomers import history_of_columns
from coterie.core.run.recommendation_files import Recommendations
from coterie.core.run.recommender import NEW
from coterie.core.serve.guard import Refused
from coterie.core.serve.messages import NewUser
from coterie.core.serve.opened import State

Answer: TypeAlias = dict[str, Any]
"""Fields of a `coterie.core.serve.messages.Listed`, plain: what is computed needs no check."""
_UNKNOWN = "there is no such user in the run"
_NOTHING_LEFT = "nothing is left to recommend: all items are consumed"


def listed(state: State, users: Sequence[str], top: int) -> list[Answer | Refused]:
    """Give the list of each user, all by one state, or why there is none.

    Args:
        state: of the run.
        users: ids, each once.
        top: how many items a list has, at most.

    Returns:
        Aligned with ``users``: fields of a `coterie.core.serve.messages.ListedUser`, or a refusal.
    """
    recommender = state.recommender
    numbers = {user: recommender.numbers.get(user) for user in users}
    known = [number for number in numbers.values() if number is not None]
    found = recommender.lists(known, top)
    items = _items(state, found.table)
    answers: list[Answer | Refused] = []
    for user, number in numbers.items():
        if number is None:
            answers.append(Refused(404, _UNKNOWN))
        elif number in found.left_out:
            answers.append(Refused(409, _one_line(found.left_out[number])))
        else:
            answers.append({**_answer(state, items.get(number, [])), "user": user})
    return answers


def unlisted(state: State, user: str, refused: Refused) -> Answer:
    """Say in the place of a user's list why there is none."""
    return {**_answer(state, [], refused.why), "user": user}


def listed_newcomer(state: State, asked: NewUser) -> Answer:
    """Give the list of someone new.

    Returns:
        Fields of a `coterie.core.serve.messages.Listed`.

    Raises:
        Refused: nothing of the history is known, or the method recommends to nobody new.
    """
    recommender = state.recommender
    try:
        history = history_of_columns(asked.history, recommender.experiment)
    except UserError as error:
        raise Refused(422, _one_line(error)) from None
    try:
        table = recommender.for_newcomer(NEW, history, asked.top)
    except UserError as error:
        raise Refused(409, _one_line(error)) from None
    found = _answer(state, _items(state, table).get(0, []))
    return {**found, "notes": [*history.notes, *found["notes"]]}


def _answer(state: State, items: list[Answer], why: str = _NOTHING_LEFT) -> Answer:
    return {"items": items, "notes": [] if items else [why], "round": state.round}


def _items(state: State, table: Recommendations) -> dict[int, list[Answer]]:
    """Items by the place of the user in the table's names, best first."""
    found: dict[int, list[Answer]] = {}
    rows = state.recommender.rows(table)
    for user, row in zip(table.user.tolist(), rows, strict=True):
        found.setdefault(user, []).append(row)
    return found


def _one_line(error: UserError) -> str:
    return " ".join(str(error).split())
