"""Rounds of many clients on two threads beside one, and on a GPU beside one core."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import torch

from coterie.continual.bench.rounds import random_engine
from coterie.core.bench.timing import Row, in_a_process, in_turns, row

_ROUNDS = 3
_N_ITEMS = 2_000
_LARGE = 1_000_000
WALL_MS = "ms a round"


def two_threads(clients: int, mean_length: int = 60) -> Row:
    """Compare rounds whose chunks run on two threads with those on one, in wall time.

    Raises:
        UserError: the measurement failed, for lack of memory for instance.
    """
    what = f"{clients:,} clients on two threads"
    found: Row = in_a_process(f"{__name__}:run_on_threads", what, clients, mean_length)
    return found


def run_on_threads(clients: int, mean_length: int) -> Row:
    """Run the rounds in this process."""
    torch.set_num_threads(1)
    engines = {n: random_engine(clients, _N_ITEMS, mean_length, workers=n) for n in (1, 2)}
    difference = float((engines[1].round(0) - engines[2].round(0)).abs().max())
    numbers = count(1)
    works: dict[str, Callable[[], object]] = {
        str(threads): partial(lambda engine: engine.round(next(numbers)), engine)
        for threads, engine in engines.items()
    }
    found = in_turns(works, _ROUNDS, time.perf_counter)
    one, two = (statistics.median(found[threads]) for threads in ("1", "2"))
    return row(f"{clients:,} clients; two threads, one", WALL_MS, two, one, difference)


def beside_a_core(device: torch.device) -> Iterator[Row]:
    """Compare rounds, validations and tests on a GPU with those of one core.

    Yields:
        Rows of wall milliseconds there, and of the core's processor time.
    """
    name = torch.cuda.get_device_name(device)
    for clients, mean_length in ((100_000, 60), (_LARGE, 20)):
        there = random_engine(clients, _N_ITEMS, mean_length, device=device)
        here = random_engine(clients, _N_ITEMS, mean_length)
        difference = float((there.round(0).cpu() - here.round(0)).abs().max())
        for what in ("round", "validate", "test"):
            ours = in_turns({"": partial(_finished, there, what)}, _ROUNDS, time.perf_counter)[""]
            core = in_turns({"": partial(getattr(here, what), 1)}, 1)[""]
            gap = difference if what == "round" else None
            label = f"{clients:,} clients, {what} on {name}; one core"
            yield row(label, WALL_MS, statistics.median(ours), min(core), gap)


def _finished(engine: Any, what: str) -> None:
    getattr(engine, what)(1)
    torch.cuda.synchronize()
