"""Lists of everybody and of one user, beside bare numpy on the same numbers."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from benchmarks.continual.rounds import Engine, random_engine
from benchmarks.core.machine import most_resident
from benchmarks.core.timing import Row, in_a_process, in_turns, row
from coterie.continual.settings import Settings
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.run.experiment import RecommendsToUsers
from coterie.core.run.recommendation_files import write_recommendations
from coterie.core.run.recommender import Lists, Recommender
from coterie.core.tensors.stacked import Ragged

USERS, ITEMS, MEAN_LENGTH = 100_000, 5_000, 15
_TOP = 10
_TURNS = 3
_ALONE = 200  # users who are asked for one after the other
_BLOCK = 1_000  # users of a product of numpy


def lists(users: int = USERS, items: int = ITEMS) -> Iterator[Row]:
    """Measure lists of random users by FedMF in a process of their own.

    Raises:
        UserError: the measurement failed, for lack of memory for instance.
    """
    what = f"lists of {users:,} users"
    yield from in_a_process(f"{__name__}:measure", what, users, items)


def measure(users: int, items: int) -> list[Row]:
    """Measure in this process, on one thread."""
    torch.set_num_threads(1)
    recommender = recommender_of(random_engine(users, items, MEAN_LENGTH))
    plain = Plain(recommender)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "ours.parquet", Path(folder) / "theirs.parquet"

        def everybody() -> None:
            write_recommendations(ours, recommender.lists(range(users), _TOP).table)

        before = most_resident()
        everybody()
        added = (most_resident() - before) / 1e6
        found = in_turns({"ours": everybody, "plain": lambda: plain.write(theirs)}, _TURNS)
        seconds = {name: statistics.median(times) / 1e3 for name, times in found.items()}
    size = f"{users:,} users, {items:,} items, top {_TOP}"
    gap = plain.difference(recommender.lists(range(min(users, _BLOCK)), _TOP))
    name = f"everybody's list, {size}, to Parquet (adds {added:.0f} MB); bare numpy"
    return [row(name, "CPU s", seconds["ours"], seconds["plain"], gap), *_one(recommender, plain)]


def _one(recommender: Recommender, plain: Plain) -> Iterator[Row]:
    """One user, asked for again and again; and users one after the other beside all at once."""
    some = range(min(_ALONE, recommender.data.n_users))

    def alone() -> None:
        for user in some:
            recommender.lists([user], _TOP)

    works = {
        "alone": alone,
        "plain": lambda: [plain.best(user, user + 1) for user in some],
        "together": lambda: recommender.lists(some, _TOP),
    }
    for clock, unit in ((time.process_time, "CPU ms"), (time.perf_counter, "ms")):
        found = in_turns(works, _TURNS, clock)
        each = {name: statistics.median(times) / len(some) for name, times in found.items()}
        yield row("one recommendation; bare numpy", unit, each["alone"], each["plain"])
    name = f"a user among {len(some)} at once; one after the other"
    yield row(name, unit, each["together"], each["alone"])


class Plain:
    """Scores by a product, what was had left out, a partition, a sort: numpy, nothing else.

    Args:
        recommender: whose numbers are taken.
    """

    def __init__(self, recommender: Recommender) -> None:
        module = recommender.module
        everybody = torch.arange(recommender.data.n_users)
        self._vectors = module.store.take(everybody).best["user"].numpy()
        self._items = module.server_state.best.numpy()
        self._had: Ragged = recommender.had

    def best(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Items and scores of the best of some users, ``(last - first, 10)`` each."""
        scores = self._vectors[first:last] @ self._items.T
        offsets = self._had.offsets[first : last + 1].numpy()
        rows = np.repeat(np.arange(last - first), np.diff(offsets))
        scores[rows, self._had.values[offsets[0] : offsets[-1]].numpy()] = -np.inf
        items = np.argpartition(scores, -_TOP, axis=1)[:, -_TOP:]
        chosen = np.take_along_axis(scores, items, 1)
        order = np.argsort(-chosen, axis=1)
        return np.take_along_axis(items, order, 1), np.take_along_axis(chosen, order, 1)

    def write(self, path: Path) -> None:
        """Write everybody's best items, as numbers."""
        users, step = len(self._vectors), _BLOCK
        parts = [self.best(first, min(first + step, users)) for first in range(0, users, step)]
        items, scores = (np.concatenate(each).ravel() for each in zip(*parts, strict=True))
        table = {"user": np.repeat(np.arange(users), _TOP), "item": items, "score": scores}
        parquet.write_table(pa.table(table), path)

    def difference(self, found: Lists) -> float:
        """The largest difference of a score at any place of the first users' lists."""
        _, scores = self.best(0, len(found.table) // _TOP)
        return float(np.abs(scores.ravel() - found.table.score).max())


class _Random(RecommendsToUsers[Settings]):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.settings)
        self._data = _interactions(engine)

    @property
    def interactions(self) -> Interactions:
        return self._data


def recommender_of(engine: Engine) -> Recommender:
    """Make lists of an engine's clients, who have had what they train on."""
    return Recommender(_Random(engine), engine.run)


def _interactions(engine: Engine) -> Interactions:
    train, n_items = engine.work.blocks[0].train, engine.work.n_items[0]
    names: list[Any] = [[str(n) for n in range(count)] for count in (len(train), n_items)]
    nothing = torch.zeros(len(train.values), dtype=torch.int64)
    users, items = names
    return Interactions(train.rows, train.values, nothing, None, users, items, None, None, "random")
