"""Memory of many clients: every method in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from coterie.core.bench.memory_use import forget_peak, most_resident, resident
from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.page.bench.rounds import Rounds
from coterie.page.settings.run import Settings

Row = dict[str, Any]

_METHODS = ("fedavg", "page")
_CLIENTS = 1000
_ROUNDS = 2


def memory(
    settings: Settings, clients: int = _CLIENTS, methods: Sequence[str] = _METHODS
) -> Iterator[Row]:
    """Measure rounds with many clients on the synthetic task: time, and what memory they add.

    Args:
        settings: only the local epochs and the batch size are used.
        clients: N.
        methods: by name.

    Yields:
        Rows whose ``reference`` is the data and the private state, that must be there anyway.

    Raises:
        UserError: a measurement failed, for lack of memory for instance.
    """
    train = settings.train
    for method in methods:
        asked = json.dumps([method, clients, train.epochs, train.batch_size])
        command = [sys.executable, "-m", __package__, asked]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
            raise UserError(f"measuring {clients:,} clients of {method} failed: {last}")
        yield json.loads(done.stdout)


def measure(method: Any, clients: int, epochs: int, batch_size: int) -> Row:
    """Run rounds in this process."""
    torch.set_num_threads(1)
    plain = Settings()
    rounds = Rounds(
        replace(
            plain,
            method=method,
            data=replace(plain.data, clients=clients),
            train=replace(plain.train, epochs=epochs, batch_size=batch_size),
        )
    )
    data = rounds.experiment.task.clients
    before = resident()
    rounds.advance()
    private = _size(rounds.module.store.take(data.ids))
    forget_peak()
    for _ in range(_ROUNDS - 1):
        rounds.advance()
    added = (most_resident() - before) / 1e6
    there = (_size(data) + private) / 1e6
    return {
        "name": f"{method}, {clients:,} clients: most that rounds add; data and private state",
        "unit": "MB",
        "ours": added,
        "reference": there,
        "ratio": there / added,
        "max_abs_diff": None,
    }


def _size(stack: object) -> int:
    return sum(value.numel() * value.element_size() for _, value in tree.tensors(stack))
