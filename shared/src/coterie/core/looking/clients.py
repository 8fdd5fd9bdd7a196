"""How clients fare: the spread of a run, and who loses by federation against another run.

Clients are people or organisations. Up to `NAMED` of them are shown by their numbers, as the end
of a training shows them; of more only the spread leaves the folder of a run. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.core.looking.facts import RunFacts
from coterie.core.looking.measures import headline, higher_is_better, tail

NAMED = 20
"""Clients that are shown one by one."""


@dataclass(frozen=True)
class PerClient:
    """A measure of each client of a run.

    Attributes:
        name: of the measure.
        ids: of clients, ``(R,)``, in ascending order.
        values: theirs, ``(R,)``, finite.
        higher: whether more is better.
    """

    name: str
    ids: NDArray[np.int64]
    values: NDArray[np.float64]
    higher: bool

    @property
    def worst_tenth(self) -> float:
        """Mean over the tenth of the clients that fare worst, at least one."""
        ordered = np.sort(self.values if self.higher else -self.values)
        mean = float(ordered[: max(1, ordered.size // 10)].mean())
        return mean if self.higher else -mean


@dataclass(frozen=True)
class Gains:
    """What each client gains by one run against another one, of the same data and seed.

    Attributes:
        name: of the measure.
        ids: of the clients that both measured, ``(R,)``.
        gains: how much better, ``(R,)``; below 0 for who loses.
    """

    name: str
    ids: NDArray[np.int64]
    gains: NDArray[np.float64]

    @property
    def losing(self) -> int:
        """Number of clients that lose."""
        return int((self.gains < 0).sum())


def per_client(run: RunFacts) -> list[PerClient]:
    """The measures of clients, that which the run is judged by first; none where it has none.

    Left out are measures of which nobody says which way is better.
    """
    order = [tail(name) for name in headline(run)]
    found = []
    for name, (ids, values) in run.measured.items():
        higher = higher_is_better(name, run)
        finite = np.isfinite(values)
        if higher is None or not finite.any():
            continue
        ids, values = ids[finite], values[finite]
        by_id = np.argsort(ids, kind="stable")
        found.append(PerClient(name, ids[by_id], values[by_id], higher))

    def rank(one: PerClient) -> int:
        return order.index(tail(one.name)) if tail(one.name) in order else len(order)

    return sorted(found, key=rank)


def gains(run: RunFacts, other: RunFacts) -> Gains | None:
    """What clients gain by a run against another one, in the first measure that both have.

    Returns:
        None where they have no measure, or no client, in common.
    """
    theirs = {one.name: one for one in per_client(other)}
    for ours in per_client(run):
        beside = theirs.get(ours.name)
        if beside is None:
            continue
        ids, at, there = np.intersect1d(ours.ids, beside.ids, return_indices=True)
        if ids.size:
            difference = ours.values[at] - beside.values[there]
            return Gains(ours.name, ids, difference if ours.higher else -difference)
    return None


def alone(runs: Sequence[RunFacts], run: RunFacts) -> RunFacts | None:
    """The run, of some, that trained each client of another one alone: same data and seed."""
    method = local_method(run)
    if method is None or run.method == method:
        return None
    fitting = (
        one
        for one in runs
        if one.method == method
        and one.seed == run.seed
        and one.data == run.data
        and one.finished
        and None not in (one.digest("clients"), run.digest("clients"))
        and one.digest("clients") == run.digest("clients")
    )
    return next(fitting, None)


def local_method(run: RunFacts) -> str | None:
    """The method that trains clients alone; None where the paper has none of its own."""
    paper = run.paper
    return None if paper.local == paper.central else paper.local
