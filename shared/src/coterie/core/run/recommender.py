"""Lists of a trained run: for one of its users, for all of them, and for people who are new."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions, in_words
from coterie.core.data.sources.catalogue import load as load_data
from coterie.core.errors import UserError
from coterie.core.metrics.ranking import top_k
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import RecommendsToUsers
from coterie.core.run.histories import History
from coterie.core.run.recommendation_files import Recommendations
from coterie.core.settings.sections import DataSettings
from coterie.core.tensors.stacked import Ragged

NEW = "new"
"""What a person without a name is called."""
_DECIMALS = 4  # of a score


class Lists(NamedTuple):
    """Recommendations to some users of a run.

    Attributes:
        table: of those who have any, in the order in which they were asked for.
        left_out: users, by number, who have none because they took no part, and why.
        finished: users, by number, who have none because they have consumed all that there is.
    """

    table: Recommendations
    left_out: dict[int, UserError]
    finished: list[int]


class Recommender:
    """A trained run that recommends, with what is worth keeping between two questions.

    One user is a batch of one: there is one way in which lists are made.

    Args:
        experiment: of the run, opened by `coterie.core.run.serving.open_run`.
        module: its state.

    Attributes:
        experiment: as given.
        module: as given.
    """

    def __init__(self, experiment: RecommendsToUsers[Any], module: FederatedRun) -> None:
        self.experiment, self.module = experiment, module

    @property
    def data(self) -> Interactions:
        """The data of the run."""
        return self.experiment.interactions

    @cached_property
    def alike(self) -> bool:
        """Whether a user's list is the same to the bit whoever else is asked for at once."""
        return self.experiment.scores_alike(self.module)

    @cached_property
    def had(self) -> Ragged:
        """Items that every user has had, also what filters left out: a row for each."""
        return Ragged.from_pairs(*self.data.had(), self.data.n_users)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of every user by its id."""
        return {name: number for number, name in enumerate(self.data.user_names)}

    def number(self, name: str) -> int:
        """Find the number of a user by its id in the data set.

        Raises:
            UserError: there is no such user, or filters left it out.
        """
        with suppress(KeyError):
            return self.numbers[name]
        raise UserError(_unknown(name, self.data, self.experiment.settings.data))

    def lists(self, users: Sequence[int], top: int) -> Lists:
        """Recommend to users of the run what they have not had.

        Args:
            users: numbers, each once.
            top: how many items a user gets, at most.
        """
        asked = torch.tensor(list(users), dtype=torch.int64)
        found, refused = [], dict[int, UserError]()
        scored = self.experiment.score_users(self.module, asked) if len(asked) else ()
        for places, scores in scored:
            if isinstance(scores, UserError):
                refused |= dict.fromkeys(places.tolist(), scores)
            else:
                found.append(best_items(scores, self.had.take(asked[places]), top).of(places))
        best = Best.joined(found)
        listed = torch.bincount(best.row, minlength=len(asked))
        left_out = {int(asked[place]): refused[place] for place in sorted(refused)}
        if refused:
            listed[list(refused)] = 1  # they are left out, not finished
        finished = asked[listed == 0].tolist()
        table = self._table(best, asked[best.row], self.data.user_names)
        return Lists(table, left_out, finished)

    def list_of(self, user: int, top: int) -> Recommendations:
        """Recommend to one user of the run, by number; arguments as for `lists`.

        Raises:
            UserError: the user took no part.
        """
        found = self.lists([user], top)
        if found.left_out:
            raise found.left_out[user]
        return found.table

    def rows(self, table: Recommendations) -> list[dict[str, Any]]:
        """Write the items of one list as rows ``rank, item, title, score``, best first."""
        titles = self.data.titles
        columns = zip(table.item.tolist(), table.rank.tolist(), table.score.tolist(), strict=True)
        return [
            {
                "rank": rank,
                "item": table.items[item],
                "title": titles[item] if titles else "",
                "score": score,
            }
            for item, rank, score in columns
        ]

    def for_newcomer(self, name: str, history: History, top: int) -> Recommendations:
        """Recommend to someone new by what they had.

        Args:
            name: what the table calls them.
            history: of theirs.
            top: how many items they get, at most.

        Raises:
            UserError: the method cannot.
        """
        scores = self.experiment.scores_for_newcomer(self.module, history.liked)
        best = best_items(scores, Ragged.from_lists([history.had.tolist()]), top)
        return self._table(best, best.row, [name])

    def _table(self, best: Best, user: Tensor, names: Sequence[str]) -> Recommendations:
        score = np.round(best.score.double().numpy(), _DECIMALS)
        columns = (user.numpy(), best.rank.numpy(), best.item.numpy(), score)
        return Recommendations(*columns, names, self.data.item_names)


class Best(NamedTuple):
    """The best items of some users, one an entry; by user, best first.

    Attributes:
        row: ``(n,)`` int64, whose.
        rank: ``(n,)`` int64, from 1.
        item: ``(n,)`` int64.
        score: ``(n,)``.
    """

    row: Tensor
    rank: Tensor
    item: Tensor
    score: Tensor

    def of(self, places: Tensor) -> Best:
        """The same where row ``i`` is that of ``places[i]``."""
        return self._replace(row=places[self.row])

    @staticmethod
    def joined(parts: Sequence[Best]) -> Best:
        """Put those of several batches in the order of their rows."""
        whole = torch.zeros(0, dtype=torch.int64)
        columns = [torch.cat(each) for each in zip(*parts, strict=True)] or [whole] * 4
        order = columns[0].argsort(stable=True)
        return Best(*(column[order] for column in columns))


def best_items(scores: Tensor, known: Ragged, top: int) -> Best:
    """Find the best items that each user does not know; of equal scores the lower number first.

    Args:
        scores: ``(U, items)``; those of -inf are of items that nobody can score for the user.
        known: items that each of the U users has had.
        top: how many items a user gets, at most.

    Example:
        >>> best = best_items(torch.tensor([[0.1, 0.9, 0.9]]), Ragged.from_lists([[1]]), 5)
        >>> best.rank.tolist(), best.item.tolist()
        ([1, 2], [2, 0])
    """
    unscored = scores == -torch.inf if scores.numel() and scores.min() == -torch.inf else None
    seen = _left_out(known, unscored, scores.shape[1])
    if unscored is not None:
        scores = scores.masked_fill(unscored, 0.0)
    best = top_k(scores, min(top, scores.shape[1]), seen)
    row, place = (best >= 0).nonzero(as_tuple=True)
    chosen = best[row, place]
    return Best(row, place + 1, chosen, scores[row, chosen])


def _left_out(known: Ragged, unscored: Tensor | None, n_items: int) -> Ragged:
    """Items that are left out of each list: known or not scored, and below ``n_items``."""
    inside = known.values < n_items
    if unscored is None and bool(inside.all()):
        return known
    rows, items = known.rows[inside], known.values[inside]
    if unscored is not None:
        user, item = unscored.nonzero(as_tuple=True)
        rows, items = torch.cat([rows, user]), torch.cat([items, item])
    return Ragged.from_pairs(rows, items, len(known))


def _unknown(name: str, data: Interactions, rules: DataSettings) -> str:
    """Say why there is no user of a name."""
    some = f"({data.n_users} users, such as {', '.join(data.user_names[:3])})"
    files = (rules.name, *getattr(rules, "more", ()))
    if data.dropped and any(name in _users_of(file, rules) for file in files):
        what = "; ".join(in_words(data.dropped))
        return f"user '{name}' is in the data, but not in the run's after filtering {some}: {what}"
    like = next((each for each in data.user_names if each.casefold() == name.casefold()), None)
    hint = f": did you mean '{like}'?" if like is not None else ""
    return f"user '{name}' is not in the run's data after filtering {some}{hint}"


def _users_of(file: str, rules: DataSettings) -> list[str]:
    """Ids of the users of a file or data set, before any filter."""
    return load_data(file, rules.root, rules.columns).user_names
