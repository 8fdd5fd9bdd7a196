"""Rounds of many clients and of many items, each size in a process of its own.

What this imports is part of the memory that is measured, so it imports what a run needs, no more.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from coterie.continual.bench.rounds import random_engine
from coterie.continual.settings import Settings
from coterie.core.bench.memory_use import forget_peak, most_resident, nbytes
from coterie.core.bench.timing import CPU_MS, in_a_process, in_turns, row
from coterie.core.kernels import switch

SIZES = (1_000, 10_000, 100_000)
CATALOGUES = (2_000, 8_000, 50_000)
"""Items, for `FEW` clients."""
FEW = 3_000
_N_ITEMS = 2_000
_MEAN_LENGTH = 60
_ROUNDS = 3  # of many clients, and one of very many
_LARGE = 100_000


def grow(
    settings: Settings, sizes: Sequence[int], mean_length: int = _MEAN_LENGTH
) -> Iterator[dict[str, Any]]:
    """Measure rounds and evaluations of FedMF on random data, 2,000 items.

    Args:
        settings: the engine's chunk is used.
        sizes: numbers of clients.
        mean_length: interactions of a client on average, two of them held out.

    Raises:
        UserError: a measurement failed, for lack of memory for instance.
    """
    for size in sizes:
        what, chunk = f"{size:,} clients", settings.engine.chunk
        yield in_a_process(f"{__name__}:many_clients", what, size, mean_length, chunk)


def many_clients(size: int, mean_length: int, chunk: int | None) -> dict[str, Any]:
    """Run rounds, validations and tests of one size in this process."""
    torch.set_num_threads(1)
    engine = random_engine(size, _N_ITEMS, mean_length, chunk)
    block = engine.work.blocks[0]
    positives = block.train.values.numel()
    peaks = [most_resident()]
    numbers = itertools.count(1)
    works: dict[str, Callable[[], object]] = {
        "round": lambda: engine.round(next(numbers)),
        "validation": lambda: engine.validate(next(numbers)),
        "test": lambda: engine.test(next(numbers)),
    }
    added = {}
    for name, work in works.items():
        forget_peak()
        before = most_resident()
        work()
        peaks.append(most_resident())
        added[name] = (peaks[-1] - before) / 1e6
    found = in_turns(works, _ROUNDS if size <= _LARGE else 1)
    seconds = {name: statistics.median(times) / 1e3 for name, times in found.items()}
    resident = nbytes(block) + nbytes(engine.run.store.take(block.ids))
    return {
        "name": f"{size:,} clients, {positives:,} positives",
        "unit": "clients a CPU second",
        "ours": size / seconds["round"],
        "seconds a round": seconds["round"],
        "seconds a validation": seconds["validation"],
        "seconds a test": seconds["test"],
        "data and state MB": resident / 1e6,
        **{f"a {name} adds MB": value for name, value in added.items()},
        "peak MB": max(peaks) / 1e6,
        "clients": size,
    }


def catalogues(settings: Settings, sizes: Sequence[int], clients: int) -> Iterator[dict[str, Any]]:
    """Measure rounds of FedMF as the items grow, with compiled loops and without.

    Raises:
        UserError: a measurement failed, for lack of memory for instance.
    """
    for items in sizes:
        what, chunk = f"{items:,} items", settings.engine.chunk
        yield in_a_process(f"{__name__}:many_items", what, items, clients, chunk)


def many_items(n_items: int, clients: int, chunk: int | None) -> dict[str, Any]:
    """Run rounds over one catalogue in this process, with compiled loops and without in turn."""
    torch.set_num_threads(1)
    engine = random_engine(clients, n_items, _MEAN_LENGTH, chunk)
    numbers = itertools.count(1)

    def ours(compiled: bool) -> None:
        with switch.kernels(compiled):
            engine.round(next(numbers))

    works = {str(how): partial(ours, how) for how in (True, False)}
    found = {how: statistics.median(times) for how, times in in_turns(works, _ROUNDS).items()}
    name = f"{n_items:,} items, {clients:,} clients; the reference is without compiled loops"
    return row(name, CPU_MS, found["True"], found["False"])
