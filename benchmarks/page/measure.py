"""The rows of ``coterie bench page``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.core.machine import Limits, forget_peak, most_resident, nbytes, resident
from benchmarks.core.modules.cases import CASES, Case, numbers
from benchmarks.core.modules.rounds import beside_a_core, beside_a_loop, on_two_processes
from benchmarks.core.timing import CPU_MS, Row, in_a_process, in_turns, row
from benchmarks.page.rounds import FedAvgRounds, Rounds, local_steps
from coterie.core.errors import UserError
from coterie.core.methods.registry import METHODS
from coterie.core.settings.schema import changed
from coterie.core.tensors.device import CPU, choose_device
from coterie.page.models import Normalise, resnet18
from coterie.page.readings import resolve
from coterie.page.settings import Settings
from coterie.page.tables import times

_LOOP_CLIENTS = 5  # that the loop trains; it is far too slow to train all in every turn
_MEMORY_ROUNDS = 2
_AS_THEY_ARE = Normalise([0.0] * 3, [1 / 255] * 3)
_RESNET = Case("ResNet-18, 11 M", lambda: resnet18(10, _AS_THEY_ARE), numbers(3, 32, 32), 8, 40, 10)
_AGENTS_MAY_COST = 5.0  # per cent of a round
_FOLLOWERS: dict[Any, str] = {"best-response": times.BEST_RESPONSE, "ddpg": times.SERVER_AGENT}


def bench(settings: Settings) -> Iterator[Row]:
    """Measure FedAvg's round, any module's, PAGE's agents, other methods' rounds, then memory.

    Everything runs on one thread and is given in CPU seconds, but for the rows of two processes
    and those of a GPU, which are there where ``engine.device`` finds one. What is compared takes
    turns in one run, so other work on the machine disturbs the ratios little.

    Args:
        settings: of a run; method, rounds and evaluation are chosen here.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``; the ratio is that of
        reference to ours. The reference is the loop's round, pfl's where it is installed, what the
        hardware allows, FedAvg's round, or what agents may cost.
    """
    torch.set_num_threads(1)
    yield from fedavg(settings)
    yield from beside_a_loop()
    yield from on_two_processes()
    if (device := choose_device(settings.engine.device)) != CPU:
        yield from beside_a_core(device, (*CASES, _RESNET))
    yield from agents(settings)
    yield from methods(settings)
    yield from memory(settings)


def fedavg(settings: Settings, turns: int = 7) -> Iterator[Row]:
    """Compare a round of FedAvg with the plain loop, the form for any module, and the hardware."""
    engine, generic = FedAvgRounds(settings), FedAvgRounds(settings, closed_form=False)
    n_clients = len(engine.clients)
    count = min(_LOOP_CLIENTS, n_clients)
    loop, weights = engine.loop(count), engine.weights
    works: dict[str, Callable[[], object]] = {
        "closed form": engine.advance,
        "torch.func": generic.advance,
        "loop": lambda: loop.round(weights),
        "evaluation": engine.module.retest,
    }
    if not engine.closed_form:
        del works["closed form"]
    found = _fastest(works, turns)
    size = f"{n_clients:,} clients, {local_steps(engine):,} steps, {engine.experiment.task.name}"
    slow = found["loop"] * n_clients / count
    for form, one in (("closed form", engine), ("torch.func", generic)):
        if form in found:
            name = f"FedAvg, {size}, {form}; loop of {count} clients, scaled"
            yield row(name, CPU_MS, found[form], slow, one.largest_difference(count))
    if engine.closed_form:
        yield from _limits(engine, found["closed form"])
    ours = found.get("closed form", found["torch.func"])
    yield row("FedAvg, the evaluation; a round", CPU_MS, found["evaluation"], ours)


def agents(settings: Settings) -> Iterator[Row]:
    """Show what the agents of PAGE cost, beside what they may cost; all in the rounds that run."""
    settings = resolve(replace(settings, method="page"))
    for follower, label in _FOLLOWERS.items():
        found = times.measure(changed(settings, {"game.follower": follower}))
        shares = {part: times.share(part, found) for part in (times.CLIENT_AGENTS, label)}
        shares = {part: value for part, value in shares.items() if value}
        for part, value in {**shares, "all agents": sum(shares.values())}.items():
            name = f"PAGE, follower {follower}: {part}"
            yield row(name, "% of a round", value, _AGENTS_MAY_COST)


def methods(settings: Settings, turns: int = 5) -> Iterator[Row]:
    """Compare the rounds of the other methods that can run on the task with FedAvg's."""
    built = {"fedavg": Rounds(replace(settings, method="fedavg"))}
    for name in ("page", *METHODS):
        chosen: Any = name
        if name not in ("fedavg", "central"):  # the latter has no clients
            try:
                built[name] = Rounds(replace(settings, method=chosen))
            except UserError:
                continue
    found = _fastest({name: rounds.advance for name, rounds in built.items()}, turns)
    for name, ours in found.items():
        if name != "fedavg":
            yield row(f"{name}, beside FedAvg", CPU_MS, ours, found["fedavg"])


def memory(
    settings: Settings, clients: int = 1000, methods: Sequence[str] = ("fedavg", "page")
) -> Iterator[Row]:
    """Measure what memory rounds with many clients add on the synthetic task, each in a process.

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
        yield in_a_process(f"{__name__}:many_clients", what, method, clients, *asked)


def many_clients(method: Any, clients: int, epochs: int, batch_size: int) -> Row:
    """Run rounds in this process."""
    torch.set_num_threads(1)
    train = {"train.epochs": epochs, "train.batch_size": batch_size}
    rounds = Rounds(changed(Settings(), {"method": method, "data.clients": clients} | train))
    data = rounds.experiment.task.clients
    before = resident()
    rounds.advance()
    private = nbytes(rounds.module.store.take(data.ids))
    forget_peak()
    for _ in range(_MEMORY_ROUNDS - 1):
        rounds.advance()
    name = f"{method}, {clients:,} clients: most that rounds add; data and private state"
    return row(name, "MB", (most_resident() - before) / 1e6, (nbytes(data) + private) / 1e6)


def _fastest(works: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    return {name: min(times) for name, times in in_turns(works, turns).items()}


def _limits(engine: FedAvgRounds, ours: float) -> Iterator[Row]:
    """Give bounds of a round of softmax regression.

    Its two matrix products; its samples moved once an epoch; and, because all clients make a step
    before any makes the next, their parameters read and written in each.
    """
    limits, settings = Limits.measured(), engine.client.settings
    seen = settings.epochs * int(engine.clients.train.lengths.sum())
    x = engine.clients.train.samples["x"]
    operations = 4 * seen * engine.weights["head.weight"].numel()
    yield limits.products("its matrix products at", operations, ours)
    samples = seen * (x[0].numel() * x.element_size() + 8)
    yield limits.moves("its samples once an epoch at", samples, ours)
    parameters = sum(value.numel() for value in engine.weights.values())
    stacked = 2 * local_steps(engine) * parameters * x.element_size()
    yield limits.moves("parameters read and written each step,", stacked, ours)
