"""What it costs that one backbone serves all clients: switching it from one to the next."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

from coterie.core.bench.timing import Row, in_turns, one_thread, row
from coterie.llm.bench.federation import Shape
from coterie.llm.bench.switched import Reloaded, Switched


def switching(shapes: Sequence[Shape], clients: int = 100, turns: int = 20) -> Iterator[Row]:
    """Measure a switch of clients against a training step, on one thread, in CPU time.

    - A *switch*, one for a client and round: take a copy of the client's private state, with its
      optimizer if that is kept, copy its row of the ``(K, d)`` matrix into the network, commit the
      state; and a K-th of gathering all trained rows into a matrix. It does not depend on the
      number of steps. To measure its recommendations a client's row is copied in once more.
    - A *whole turn* is a switch and everything else that `Cohort.ask` does for a client without an
      example: keys, the mode of every module, the check for NaN, the ledger.
    - A *step* is what asking takes longer for a client with one batch: loss, gradients, Adam.
    - *Mixing* is the aggregation of a round (Eq. 1 to 5), its K-th part. It is no part of a switch.
    - References, without optimizers: ``copy.deepcopy`` of the network for every client and round;
      one network whose whole ``state_dict`` is loaded and copied back.

    The kinds take turns, each time with another client, so that caches are as cold as in a run;
    figures are medians.

    Args:
        shapes: models and batches.
        clients: K.
        turns: how often each kind is measured, after one to warm up.

    Yields:
        Rows with ``name, unit, ours, reference, ratio, max_abs_diff``: the reference is a training
        step, the ratio a share of it; the difference is that of scores from those of a deep copy
        which was given the client's adapter.
    """
    with one_thread():
        for shape in shapes:
            yield from _rows(shape, clients, turns)


def _rows(shape: Shape, clients: int, turns: int) -> Iterator[Row]:
    anew = Switched(shape, clients, False)
    kept = Switched(shape, clients, True, like=anew)
    plain = Reloaded(shape)
    numbers = (37 * number % clients for number in itertools.count(1))

    def each(works: dict[str, Callable[[int], None]], turns: int) -> dict[str, float]:
        """Median CPU milliseconds of each kind, every time with another client."""
        called = {name: lambda work=work: work(next(numbers)) for name, work in works.items()}
        return {name: statistics.median(found) for name, found in in_turns(called, turns).items()}

    times = each(
        {
            "step": anew.step,
            "switch": anew.switch,
            "switch, optimizer kept": kept.switch,
            "whole turn": anew.turn,
            "load_state_dict": plain.switch,
            "copy.deepcopy": plain.deepcopy,
        },
        turns,
    )
    few = each({"gather": lambda _: anew.gather(), "mixing": lambda _: anew.mix()}, 3)
    step = times.pop("step") - times["whole turn"]
    for name in ("switch", "switch, optimizer kept", "whole turn"):
        times[name] += few["gather"] / clients
    times["mixing"] = few["mixing"] / clients
    differences = {
        "switch": anew.difference(1),
        "switch, optimizer kept": kept.difference(clients - 1),
    }
    for name, value in times.items():
        whose = f"{name}; {shape}, d = {anew.rows.shape[1]:,}, K = {clients}"
        yield row(whose, "CPU ms, of a step", value, step, differences.get(name), share=True)
