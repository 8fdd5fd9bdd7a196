"""Memory of many clients: every method in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from coterie.core.bench.memory_use import forget_peak, most_resident, nbytes, resident
from coterie.core.bench.timing import Row, in_a_process, row
from coterie.page.bench.rounds import Rounds
from coterie.page.settings.run import Settings

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
        what, asked = f"{clients:,} clients of {method}", (train.epochs, train.batch_size)
        yield in_a_process(f"{__name__}:measure", what, method, clients, *asked)


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
    private = nbytes(rounds.module.store.take(data.ids))
    forget_peak()
    for _ in range(_ROUNDS - 1):
        rounds.advance()
    name = f"{method}, {clients:,} clients: most that rounds add; data and private state"
    return row(name, "MB", (most_resident() - before) / 1e6, (nbytes(data) + private) / 1e6)
