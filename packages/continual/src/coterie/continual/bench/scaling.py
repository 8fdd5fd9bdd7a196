"""Clients a second and memory as the clients grow; every size in a process of its own."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coterie.continual.bench.rounds import Engine
from coterie.continual.bench.workload import Workload, random_block
from coterie.continual.readings import resolve
from coterie.continual.settings import Settings
from coterie.core.bench.memory_use import forget_peak, most_resident, nbytes
from coterie.core.bench.timing import in_a_process, in_turns
from coterie.core.settings.sections import EngineSettings
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Lines, plot_panels
from coterie.core.tensors.keys import Key

SIZES = (1_000, 10_000, 100_000)
_N_ITEMS = 2_000
_MEAN_LENGTH = 60
_ROUNDS = 3


def grow(settings: Settings, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Measure rounds of FedMF on random data: 2,000 items, 60 interactions a client on average.

    Args:
        settings: only the engine's chunk is used.
        sizes: numbers of clients.

    Raises:
        UserError: a measurement failed, for lack of memory for instance.
    """
    for size in sizes:
        what = f"{size:,} clients"
        yield in_a_process(f"{__name__}:measure", what, size, settings.engine.chunk)


def measure(size: int, chunk: int | None) -> dict[str, Any]:
    """Run rounds of one size in this process."""
    torch.set_num_threads(1)
    settings = replace(Settings(), engine=EngineSettings(chunk=chunk))
    key, ids = Key.from_seed(0).fold("scaling"), torch.arange(size)
    block = random_block(key, ids, _N_ITEMS, _MEAN_LENGTH * size)
    engine = Engine(resolve(settings), Workload("random", [block], [_N_ITEMS]))
    resident = nbytes(block) + nbytes(engine.run.store.take(ids))
    forget_peak()
    before = most_resident()
    numbers = itertools.count(1)
    times = in_turns({"round": lambda: engine.round(next(numbers))}, _ROUNDS)["round"]
    seconds = statistics.median(times) / 1e3
    return {
        "name": f"{size:,} clients, {block.train.values.numel():,} positives",
        "unit": "clients a CPU second",
        "ours": size / seconds,
        "seconds a round": seconds,
        "data and state MB": resident / 1e6,
        "round adds MB": (most_resident() - before) / 1e6,
        "peak MB": most_resident() / 1e6,
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

    panels = [
        panel("CPU seconds a round", {"a round": "seconds a round"}),
        panel("MB", {name: name for name in ("data and state MB", "round adds MB")}),
    ]
    return plot_panels(panels, "A round of FedMF as the clients grow", path)
