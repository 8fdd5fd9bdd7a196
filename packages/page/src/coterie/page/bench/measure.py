"""The rows of ``coterie bench page``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from coterie.core.bench.hardware import Limits
from coterie.core.errors import UserError
from coterie.core.methods.registry import METHODS
from coterie.page.bench.memory import memory
from coterie.page.bench.rounds import FedAvgRounds, Rounds, local_steps
from coterie.page.readings import resolve
from coterie.page.settings.run import Settings
from coterie.page.tables import times

Row = dict[str, Any]

_LOOP_CLIENTS = 5  # that the loop trains; it is far too slow to train all in every turn
_AGENTS_MAY_COST = 5.0  # per cent of a round
_UNIT = "CPU ms a round"
_FOLLOWERS: dict[Any, str] = {"best-response": times.BEST_RESPONSE, "ddpg": times.SERVER_AGENT}


def bench(settings: Settings) -> Iterator[Row]:
    """Measure FedAvg's round, PAGE's agents, the other methods' rounds, then memory.

    Everything runs on one thread and is given in CPU seconds. What is compared takes turns in one
    run, and the fastest turn counts, so other work on the machine disturbs the ratios little.

    Args:
        settings: of a run; method, rounds and evaluation are chosen here.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``; the ratio is that of
        reference to ours. The reference is the loop's round, what the hardware allows, FedAvg's
        round, or what agents may cost.
    """
    torch.set_num_threads(1)
    yield from fedavg(settings)
    yield from agents(settings)
    yield from methods(settings)
    yield from memory(settings)


def fedavg(settings: Settings, turns: int = 7) -> Iterator[Row]:
    """Compare a round of FedAvg with the plain loop, the form for any module, and the hardware.

    Args:
        settings: of a run.
        turns: of each, after one to warm up.
    """
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
    found = fastest(works, turns)
    size = f"{n_clients:,} clients, {local_steps(engine):,} steps, {engine.experiment.task.name}"
    slow = found["loop"] * n_clients / count
    for form, one in (("closed form", engine), ("torch.func", generic)):
        if form in found:
            name = f"FedAvg, {size}, {form}; loop of {count} clients, scaled"
            yield row(name, _UNIT, found[form], slow, one.largest_difference(count))
    if engine.closed_form:
        yield from _limits(engine, found["closed form"])
    ours = found.get("closed form", found["torch.func"])
    yield row("FedAvg, the evaluation; a round", _UNIT, found["evaluation"], ours)


def agents(settings: Settings) -> Iterator[Row]:
    """Show what the agents of PAGE cost, beside what they may cost; all in the rounds that run."""
    settings = resolve(replace(settings, method="page"))
    for follower, label in _FOLLOWERS.items():
        game = replace(settings.game, follower=follower)
        found = times.measure(replace(settings, game=game))
        shares = {part: times.share(part, found) for part in (times.CLIENT_AGENTS, label)}
        shares = {part: value for part, value in shares.items() if value}
        for part, value in {**shares, "all agents": sum(shares.values())}.items():
            name = f"PAGE, follower {follower}: {part}"
            yield row(name, "% of a round", value, _AGENTS_MAY_COST)


def methods(settings: Settings, turns: int = 5) -> Iterator[Row]:
    """Compare the rounds of the other methods with FedAvg's.

    Args:
        settings: of a run; methods that cannot run on its task are left out.
        turns: of each, after one to warm up.
    """
    built = {"fedavg": Rounds(replace(settings, method="fedavg"))}
    for name in ("page", *METHODS):
        chosen: Any = name
        if name not in ("fedavg", "central"):  # the latter has no clients
            try:
                built[name] = Rounds(replace(settings, method=chosen))
            except UserError:
                continue
    found = fastest({name: rounds.advance for name, rounds in built.items()}, turns)
    for name, ours in found.items():
        if name != "fedavg":
            yield row(f"{name}, beside FedAvg", _UNIT, ours, found["fedavg"])


def fastest(works: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Let all take turns, and give the CPU milliseconds of each one's fastest.

    Args:
        works: what is timed, by name.
        turns: after one to warm up.
    """
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns + 1):
        for name, work in works.items():
            start = time.process_time()
            work()
            found[name].append(1e3 * (time.process_time() - start))
    return {name: min(seconds[1:]) for name, seconds in found.items()}


def row(
    name: str, unit: str, ours: float, reference: float, max_abs_diff: float | None = None
) -> Row:
    """Make a row of the benchmark."""
    ratio = reference / ours
    values = {"ours": ours, "reference": reference, "ratio": ratio, "max_abs_diff": max_abs_diff}
    return {"name": name, "unit": unit} | values


def _limits(engine: FedAvgRounds, ours: float) -> Iterator[Row]:
    """Give bounds of a round of softmax regression.

    Its two matrix products; its samples moved once an epoch; and, because all clients make a step
    before any makes the next, their parameters read and written in each.
    """
    limits, settings = Limits.measured(), engine.client.settings
    seen = settings.epochs * int(engine.clients.train.lengths.sum())
    parameters = sum(value.numel() for value in engine.weights.values())
    x = engine.clients.train.samples["x"]
    products = 4 * seen * engine.weights["head.weight"].numel() / limits.flops
    samples = seen * (x[0].numel() * x.element_size() + 8) / limits.bandwidth
    steps = local_steps(engine)
    stacked = 2 * steps * parameters * x.element_size() / limits.bandwidth
    rates = f"{limits.flops / 1e9:.0f} GFLOP/s", f"{limits.bandwidth / 1e9:.1f} GB/s"
    yield row(f"  its matrix products at {rates[0]}", _UNIT, ours, 1e3 * products)
    yield row(f"  its samples once an epoch at {rates[1]}", _UNIT, ours, 1e3 * samples)
    yield row(f"  parameters read and written each step, {rates[1]}", _UNIT, ours, 1e3 * stacked)
