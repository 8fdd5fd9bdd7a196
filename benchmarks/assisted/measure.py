"""The rows of ``coterie bench mtal``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from benchmarks.assisted.rounds import Idle, Rounds, Work, use_of
from benchmarks.assisted.training import local_training
from benchmarks.core.machine import Limits
from benchmarks.core.timing import CPU_MS, Row, in_turns, row
from coterie.assisted.settings import Settings
from coterie.core.tables.stopwatch import one_thread
from coterie.core.tensors.keys import Key

_OWN_ROUNDS = 5  # that are timed after each number of rounds


def bench(settings: Settings) -> Iterator[Row]:
    """Measure an organisation's training, a round, what of it is not training, and its memory.

    Everything runs on one thread and is given in CPU time, the least of several turns.

    Args:
        settings: of a run; method and number of rounds are chosen here. Local training is that of
            random data of ML-100K's size, whatever the settings.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``; the ratio is that of
        reference to ours.
    """
    yield from local_training()
    with one_thread():
        yield from whole_round(settings)
        yield from own_part(settings)
    yield from memory(settings)


def whole_round(settings: Settings, turns: int = 2) -> Iterator[Row]:
    """Time a round of all organisations, and give what the hardware allows for its training."""
    rounds = Rounds(settings)
    ours = min(in_turns({"round": rounds.advance}, turns)["round"])
    work: list[Work] = rounds.client.trained[-len(rounds.experiment.organisations) :]
    steps, limits = sum(one.steps for one in work), Limits.measured()
    yield row(f"a round, {rounds.source}, {steps:,} local steps", "CPU s", ours / 1e3)
    sparse, dense = sum(one.sparse for one in work), sum(one.dense for one in work)
    yield limits.products("products at observed cells at", sparse, ours)
    yield limits.products("products with all outputs at", dense, ours)
    moved = sum(one.moved for one in work)
    yield limits.moves("Adam's parameters, moments, gradients at", moved, ours)
    training = 1e3 * sum(one.seconds for one in work)
    yield row("  local training, of the newest round; the round", CPU_MS, training, ours)
    yield starts(work, training)


def starts(work: Sequence[Work], training: float) -> Row:
    """Time the drawing of first parameters, which is a part of training."""
    key = Key.from_seed(0)
    draws = {"draw": lambda: [one.network.start(key) for one in work]}
    ours = min(in_turns(draws, 3)["draw"])
    return row(f"  first parameters of {len(work)} networks; training", CPU_MS, ours, training)


def own_part(settings: Settings, after: Sequence[int] = (1, 10, 100)) -> Iterator[Row]:
    """Time rounds without training and prediction, after ever more rounds: they take no longer.

    What remains is what the organisations are asked, what passes between them, the guard, the
    ledger, aggregation and measuring. The reference is the first row's time.
    """
    rounds, done, first = Rounds(settings, Idle), 0, None
    for count in after:
        while done < count:
            rounds.advance()
            done += 1
        times = [_milliseconds(rounds) for _ in range(_OWN_ROUNDS)]
        done += _OWN_ROUNDS
        ours = min(times)
        name = f"own part of a round, {rounds.source}, after {count} rounds"
        yield row(name, CPU_MS, ours, first)
        first = ours if first is None else first


def memory(settings: Settings) -> Iterator[Row]:
    """Measure what the first round takes, in a process of its own."""
    name = f"a round, {settings.data.name}"
    use = use_of(settings, name)
    yield row(f"{name}: most resident; before it", "MB", use.most / 1e6, use.before / 1e6)
    yield row("  of it models, kept in every round", "MB", use.models / 1e6)


def _milliseconds(rounds: Rounds) -> float:
    began = time.process_time()
    rounds.advance()
    return 1e3 * (time.process_time() - began)
