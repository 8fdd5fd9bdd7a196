"""The rows of ``coterie bench f3crec``."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.continual.lists import lists
from benchmarks.continual.loop import ClientLoop, LoopByHand
from benchmarks.continual.pfl_peer import PflLoop
from benchmarks.continual.rounds import Engine, Workload, largest_difference, workload
from benchmarks.continual.sizes import (
    CATALOGUES,
    FEW,
    SIZES,
    beside_a_core,
    catalogues,
    grow,
    two_processes,
)
from benchmarks.core import pfl_rounds
from benchmarks.core.data import own_files
from benchmarks.core.machine import Limits
from benchmarks.core.timing import CPU_MS, Row, in_turns, row
from benchmarks.core.trainer import trainer_overhead
from coterie.continual.settings import Settings, resolve
from coterie.core.errors import UserError
from coterie.core.kernels import switch
from coterie.core.tables.paired import spread
from coterie.core.tables.pictures import plot_panels
from coterie.core.tables.plots import Lines
from coterie.core.tensors.device import CPU, choose_device

_LARGE = 100_000
_PER_TURN = 5  # rounds of the engine for each round of the much slower loop


def bench(settings: Settings) -> Iterator[Row]:
    """Measure rounds against the loop, against the hardware, as the clients grow; then own files.

    Everything runs on one thread and is given in CPU seconds, so other work on the machine disturbs
    little. ``run.out`` is the folder of the picture.

    Args:
        settings: of a run; the engine's chunk, the model and the data set are used.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``; ``reference`` is the loop's
        figure, pfl's where it is installed, the limit that the hardware sets, or pandas's figure.

    Raises:
        UserError: the backbone is not FedMF, which the loop is written for.
    """
    if settings.model.name != "fedmf":
        raise UserError("the benchmark's loop trains FedMF: leave --model.name at fedmf")
    torch.set_num_threads(1)
    settings = resolve(replace(settings, method="f3crec"))
    yield from rounds(settings, workload(settings))
    yield trainer_overhead()
    grown = []
    for size in grow(settings, SIZES):
        grown.append(size)
        yield size
    plot(grown, settings.run.folder / "f3crec" / "bench" / "scaling.png")
    yield from catalogues(settings, CATALOGUES, FEW)
    yield from lists()
    yield two_processes(_LARGE)
    if (device := choose_device(settings.engine.device)) != CPU:
        yield from beside_a_core(device)
    yield from own_files.measure()


def rounds(settings: Settings, work: Workload, turns: int = 9) -> Iterator[Row]:
    """Compare single rounds of the base block and of the next one, over turns of the loop."""
    engine = Engine(settings, work)
    engine.train()
    limits = Limits.measured()
    yield from compare(f"base block, FedMF, {_size(engine)}, {work.name}", engine, turns)
    yield from _bounds(limits, engine)
    engine.next_block()
    yield from compare(f"next block, F³CRec, {_size(engine)}, {work.name}", engine, turns)
    yield from _bounds(limits, engine)


def compare(name: str, engine: Engine, turns: int) -> Iterator[Row]:
    """One round of all clients, sampling and shuffling included: the engine and loops in turn.

    The engine runs as it is, and without compiled loops where there are any; in the base block
    there is a loop with gradients by hand too, and pfl where it is installed. The figures are
    medians, so that a turn that was disturbed does not count.
    """
    table, numbers = engine.down().items, itertools.count(100)
    loops = {"": ClientLoop} if engine.block else _base_loops()
    engines = [True, False][: 1 + switch.available()]

    def ours(compiled: bool) -> None:
        with switch.kernels(compiled):
            engine.round(next(numbers))

    works: dict[str, Callable[[], object]] = {
        f"loop{beside}": partial(lambda one: engine.remember(one.round(table)), engine.loop(made))
        for beside, made in loops.items()
    }
    for compiled, number in itertools.product(engines, range(_PER_TURN)):  # in a row, as in a run
        works[f"engine {compiled} {number}"] = partial(ours, compiled)
    found = in_turns(works, turns)

    for compiled, (beside, made) in itertools.product(engines, loops.items()):
        label = name if compiled else "the same without compiled loops"
        with switch.kernels(compiled):
            difference = largest_difference(engine, made)
        turn_times = [found[f"engine {compiled} {number}"] for number in range(_PER_TURN)]
        one = statistics.median(itertools.chain(*turn_times))
        other = statistics.median(found[f"loop{beside}"])
        yield row(label + beside, CPU_MS, one, other, difference)


def _base_loops() -> dict[str, type[ClientLoop]]:
    """Loops of the base block, by what their rows say of them."""
    loops = {"": ClientLoop, ", beside a loop by hand on touched rows": LoopByHand}
    return loops | ({", beside pfl, dense": PflLoop} if pfl_rounds.installed() else {})


def plot(rows: Sequence[dict[str, Any]], path: Path) -> Path | None:
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
