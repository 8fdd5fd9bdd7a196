"""The rows of ``coterie bench f3crec``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coterie.continual.bench.limits import bounds
from coterie.continual.bench.rounds import Engine, largest_difference
from coterie.continual.bench.scaling import SIZES, grow, plot
from coterie.continual.bench.workload import Workload, workload
from coterie.continual.readings import resolve
from coterie.continual.settings import Settings
from coterie.core.bench.hardware import Limits
from coterie.core.errors import UserError
from coterie.core.run.runfolder import DEFAULT_OUT

Row = dict[str, Any]

_PER_TURN = 3  # rounds of the engine for each round of the much slower loop


def bench(settings: Settings) -> Iterator[Row]:
    """Measure rounds against the loop, then against the hardware, then as the clients grow.

    Everything runs on one thread and is given in CPU seconds, so other work on the machine disturbs
    little. ``run.out`` is the folder of the picture.

    Args:
        settings: of a run; the engine's chunk, the model and the data set are used.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``; ``reference`` is the loop's
        figure, or the limit that the hardware sets.

    Raises:
        UserError: the backbone is not FedMF, which the loop is written for.
    """
    if settings.model.name != "fedmf":
        raise UserError("the benchmark's loop trains FedMF: leave --model.name at fedmf")
    torch.set_num_threads(1)
    settings = resolve(replace(settings, method="f3crec"))
    yield from rounds(settings, workload(settings))
    grown = []
    for row in grow(settings, SIZES):
        grown.append(row)
        yield row
    plot(grown, Path(settings.run.out or DEFAULT_OUT) / "f3crec" / "bench" / "scaling.png")


def rounds(settings: Settings, work: Workload, turns: int = 9) -> Iterator[Row]:
    """Compare single rounds of the base block and of the next one.

    Args:
        settings: with the reading's choices resolved.
        work: the data.
        turns: rounds of the loop that are measured, after one to warm up.
    """
    engine = Engine(settings, work)
    engine.train()
    limits = Limits.measured()
    yield compare(f"base block, FedMF, {_size(engine)}, {work.name}", engine, turns)
    yield from bounds(limits, engine)
    engine.next_block()
    yield compare(f"next block, F³CRec, {_size(engine)}, {work.name}", engine, turns)
    yield from bounds(limits, engine)


def compare(name: str, engine: Engine, turns: int) -> Row:
    """One round of all clients, sampling and shuffling included: the engine and the loop in turn.

    The figures are medians, so that a turn that was disturbed does not count.
    """
    loop, table = engine.loop(), engine.down().items
    difference = largest_difference(engine)
    ours, reference = [], []
    for turn in range(turns + 1):
        reference.append(_cpu_seconds(lambda: engine.remember(loop.round(table))))
        for repeat in range(_PER_TURN):
            number = 100 + _PER_TURN * turn + repeat
            ours.append(_cpu_seconds(lambda number=number: engine.round(number)))  # type: ignore[misc]
    fast = 1e3 * statistics.median(ours[_PER_TURN:])
    slow = 1e3 * statistics.median(reference[1:])
    return _row(name, "CPU ms a round", fast, slow, slow / fast, difference)


def _size(engine: Engine) -> str:
    data = engine.work.blocks[engine.block]
    return f"{len(data.ids):,} clients, {data.train.values.numel():,} positives"


def _cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _row(
    name: str,
    unit: str,
    ours: float,
    reference: float | None = None,
    ratio: float | None = None,
    max_abs_diff: float | None = None,
) -> Row:
    values = {"ours": ours, "reference": reference, "ratio": ratio, "max_abs_diff": max_abs_diff}
    return {"name": name, "unit": unit} | values
