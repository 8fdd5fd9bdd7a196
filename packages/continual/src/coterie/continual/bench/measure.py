"""The rows of ``coterie bench f3crec``."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coterie.continual.bench.rounds import Engine, largest_difference
from coterie.continual.bench.workload import Workload, leave_one_out, random_block, workload
from coterie.continual.readings import resolve
from coterie.continual.settings import Settings
from coterie.core.bench.hardware import Limits
from coterie.core.bench.memory_use import forget_peak, most_resident, nbytes
from coterie.core.bench.timing import CPU_MS, Row, in_a_process, in_turns, row
from coterie.core.errors import UserError
from coterie.core.settings.schema import changed
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Lines, plot_panels
from coterie.core.tensors.keys import Key

SIZES = (1_000, 10_000, 100_000)
_N_ITEMS = 2_000
_MEAN_LENGTH = 60
_ROUNDS = 3  # of many clients, and one of very many
_LARGE = 100_000
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
    for size in grow(settings, SIZES):
        grown.append(size)
        yield size
    plot(grown, settings.run.folder / "f3crec" / "bench" / "scaling.png")


def rounds(settings: Settings, work: Workload, turns: int = 9) -> Iterator[Row]:
    """Compare single rounds of the base block and of the next one, over turns of the loop."""
    engine = Engine(settings, work)
    engine.train()
    limits = Limits.measured()
    yield compare(f"base block, FedMF, {_size(engine)}, {work.name}", engine, turns)
    yield from _bounds(limits, engine)
    engine.next_block()
    yield compare(f"next block, F³CRec, {_size(engine)}, {work.name}", engine, turns)
    yield from _bounds(limits, engine)


def compare(name: str, engine: Engine, turns: int) -> Row:
    """One round of all clients, sampling and shuffling included: the engine and the loop in turn.

    The figures are medians, so that a turn that was disturbed does not count.
    """
    loop, table, numbers = engine.loop(), engine.down().items, itertools.count(100)
    difference = largest_difference(engine)

    def ours() -> None:
        engine.round(next(numbers))

    works: dict[str, Callable[[], object]] = {
        "loop": lambda: engine.remember(loop.round(table)),
        **{f"engine {n}": ours for n in range(_PER_TURN)},
    }
    found = in_turns(works, turns)
    slow = statistics.median(found.pop("loop"))
    fast = statistics.median(itertools.chain(*found.values()))
    return row(name, CPU_MS, fast, slow, difference)


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
    settings = changed(Settings(), {"engine.chunk": chunk})
    key, ids = Key.from_seed(0).fold("scaling"), torch.arange(size)
    block = leave_one_out(random_block(key, ids, _N_ITEMS, mean_length * size))
    engine = Engine(resolve(settings), Workload("random", [block], [_N_ITEMS]))
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
    resident = nbytes(block) + nbytes(engine.run.store.take(ids))
    return {
        "name": f"{size:,} clients, {block.train.values.numel():,} positives",
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


def plot(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Draw time and memory over the number of clients.

    Raises:
        UserError: the file cannot be written.
    """
    clients = [row["clients"] for row in rows]

    def panel(label: str, lines: dict[str, str]) -> Lines:
        shown = {name: [spread([row[key]]) for row in rows] for name, key in lines.items()}
        return Lines("clients", clients, shown, log=True, y_label=label, log_y=True)

    works = ("round", "validation", "test")
    memory = ("data and state MB", *(f"a {name} adds MB" for name in works), "peak MB")
    panels = [
        panel("CPU seconds", {f"a {name}": f"seconds a {name}" for name in works}),
        panel("MB", {name.removesuffix(" MB"): name for name in memory}),
    ]
    return plot_panels(panels, "A round of FedMF as the clients grow", path)


def _bounds(limits: Limits, engine: Engine) -> Iterator[Row]:
    """Two bounds on one round: its three matrix products, and its data moved once."""
    data, model = engine.work.blocks[engine.block], engine.settings.model
    table = engine.down().items
    samples = data.train.lengths * (1 + model.negatives)
    batches = int(((samples + model.batch_size - 1) // model.batch_size).sum())
    # Scores, gradients of users and changes of items: (batches, n_items) x (n_items, d) each.
    yield limits.products("its matrix products at", 3 * 2 * batches * table.numel() * model.epochs)
    vectors = data.ids.numel() * table.shape[1]
    once = int(samples.sum()) * (8 + table.element_size()) * model.epochs
    moved = once + 2 * (table.numel() + vectors) * table.element_size()
    yield limits.moves("its samples and tables moved once at", moved)


def _size(engine: Engine) -> str:
    data = engine.work.blocks[engine.block]
    return f"{len(data.ids):,} clients, {data.train.values.numel():,} positives"
