"""Rounds of many clients and of many items, each size in a process of its own; and on other cores.

What this imports is part of the memory that is measured, so it imports what a run needs, no more.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.continual.rounds import Engine, random_engine
from benchmarks.core.machine import forget_peak, most_resident, nbytes
from benchmarks.core.timing import CPU_MS, Row, in_a_process, in_turns, in_two_processes, row
from coterie.continual.settings import Settings
from coterie.core.kernels import switch

SIZES = (1_000, 10_000, 100_000)
CATALOGUES = (2_000, 8_000, 50_000)
"""Items, for `FEW` clients."""
FEW = 3_000
_N_ITEMS = 2_000
_MEAN_LENGTH = 60
_ROUNDS = 3  # of many clients, and one of very many
_LARGE = 100_000
_MILLION = 1_000_000
_WALL_MS = "ms a round"


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


def two_processes(clients: int, mean_length: int = 60) -> Row:
    """Compare rounds whose chunks run in two processes with those in one, in wall time.

    Raises:
        UserError: the measurement failed, for lack of memory for instance.
    """
    what = f"{clients:,} clients in two processes"
    found: Row = in_a_process(f"{__name__}:run_in_processes", what, clients, mean_length)
    return found


def run_in_processes(clients: int, mean_length: int) -> Row:
    """Run the rounds in this process and two of its own."""
    torch.set_num_threads(1)
    engines = {n: random_engine(clients, _N_ITEMS, mean_length, workers=n) for n in (1, 2)}
    difference = float((engines[1].round(0) - engines[2].round(0)).abs().max())
    numbers = itertools.count(1)
    one, two = (partial(_next_round, engines[workers], numbers) for workers in (1, 2))
    return in_two_processes(f"{clients:,} clients", _WALL_MS, one, two, difference)


def _next_round(engine: Engine, numbers: Iterator[int]) -> object:
    return engine.round(next(numbers))


def beside_a_core(device: torch.device) -> Iterator[Row]:
    """Compare rounds, validations and tests on a GPU with those of one core.

    Yields:
        Rows of wall milliseconds there, and of the core's processor time.
    """
    name = torch.cuda.get_device_name(device)
    for clients, mean_length in ((100_000, 60), (_MILLION, 20)):
        there = random_engine(clients, _N_ITEMS, mean_length, device=device)
        here = random_engine(clients, _N_ITEMS, mean_length)
        difference = float((there.round(0).cpu() - here.round(0)).abs().max())
        for what in ("round", "validate", "test"):
            ours = in_turns({"": partial(_finished, there, what)}, _ROUNDS, time.perf_counter)[""]
            core = in_turns({"": partial(getattr(here, what), 1)}, 1)[""]
            gap = difference if what == "round" else None
            label = f"{clients:,} clients, {what} on {name}; one core"
            yield row(label, _WALL_MS, statistics.median(ours), min(core), gap)


def _finished(engine: Any, what: str) -> None:
    getattr(engine, what)(1)
    torch.cuda.synchronize()
