"""Clients a second and memory as the clients grow; every size in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coterie.continual.bench.rounds import Engine
from coterie.continual.bench.workload import Workload, random_block
from coterie.continual.readings import resolve
from coterie.continual.settings import Settings
from coterie.core.bench.memory_use import forget_peak, most_resident
from coterie.core.errors import UserError
from coterie.core.files import writing
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors import tree
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
        command = [sys.executable, "-m", __package__, str(size), str(settings.engine.chunk or 0)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
            raise UserError(f"measuring {size:,} clients failed: {last}")
        yield json.loads(done.stdout)


def measure(size: int, chunk: int | None) -> dict[str, Any]:
    """Run rounds of one size in this process."""
    torch.set_num_threads(1)
    settings = replace(Settings(), engine=EngineSettings(chunk=chunk))
    key, ids = Key.from_seed(0).fold("scaling"), torch.arange(size)
    block = random_block(key, ids, _N_ITEMS, _MEAN_LENGTH * size)
    engine = Engine(resolve(settings), Workload("random", [block], [_N_ITEMS]))
    resident = sum(t.numel() * t.element_size() for _, t in tree.tensors(block))
    resident += sum(t.numel() * t.element_size() for _, t in tree.tensors(engine.store.take(ids)))
    forget_peak()
    before = most_resident()
    seconds = []
    for number in range(1, _ROUNDS + 1):
        start = time.process_time()
        engine.round(number)
        seconds.append(time.process_time() - start)
    return {
        "name": f"{size:,} clients, {block.train.values.numel():,} positives",
        "unit": "clients a CPU second",
        "ours": size / statistics.median(seconds),
        "seconds a round": statistics.median(seconds),
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
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    clients = [row["clients"] for row in rows]
    left, right = figure.subplots(1, 2)
    left.loglog(clients, [row["seconds a round"] for row in rows], marker="o")
    left.set(xlabel="clients", ylabel="CPU seconds a round")
    for name in ("data and state MB", "round adds MB"):
        right.loglog(clients, [row[name] for row in rows], marker="o", label=name)
    right.set(xlabel="clients", ylabel="MB")
    right.legend()
    figure.suptitle("A round of FedMF as the clients grow")
    temporary = path.with_name(f".{path.name}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(temporary, format="png", dpi=150)
        temporary.replace(path)
    return path
