"""A picture of a run of MTAL beside what the same organisations have without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from coterie.assisted.readings import MODELS, baseline
from coterie.assisted.settings import Settings
from coterie.core.federation.federation import Federation
from coterie.core.metrics.monitor import Monitor
from coterie.core.run.driver import FederatedRun
from coterie.core.style import Roles, better_of
from coterie.core.tables.jobs import Counting
from coterie.core.tables.paired import spread
from coterie.core.tables.pictures import plot_panels
from coterie.core.tables.plots import Curve, Curves
from coterie.core.training.trainer import fit

FILE = "mtal.png"
_SHORT = {"rmse": "RMSE", "map@10": "MAP@10"}


def compared(settings: Settings) -> dict[str, Settings]:
    """List what a run of MTAL is drawn beside, by name.

    A ranking of everything that is held out of a row, as Joint has it, is no ranking of what single
    organisations hold of it: Joint is there where evaluation is pooled, or feedback explicit.

    Args:
        settings: with the reading's choices resolved.
    """
    explicit = settings.data.feedback == "explicit"
    untrained = "bias" if explicit else "rate"
    found = {
        "Alone AAE": baseline(settings, "alone", "aae"),
        f"Alone {MODELS[untrained]}": baseline(settings, "alone", untrained),
    }
    if explicit or settings.evaluation == "pooled":
        found = {"Joint AAE": baseline(settings, "joint", "aae"), **found}
    return found


def compare(
    module: FederatedRun,
    settings: Settings,
    make: Callable[[Settings], Federation],
    folder: Path,
) -> str:
    """Train what a run is compared with, and draw its rounds beside them into `FILE`.

    Args:
        module: a finished run of MTAL.
        settings: of the run, with the reading's choices resolved.
        make: gives the federation of settings.
        folder: of the run.

    Returns:
        The tests in a line.

    Raises:
        UserError: the image cannot be written.
    """
    monitor = module.federation.monitor
    assert monitor is not None
    wanted = {"base": baseline(settings, "alone", "base"), **compared(settings)}
    done = {}
    with Counting(FILE, len(wanted), settings.run.progress) as bar:
        for name, how in wanted.items():
            done[name] = FederatedRun(make(how))
            fit(done[name])
            bar.done(name)
    start = done.pop("base").history[0][monitor.key]
    tests = {name: tested(run, monitor) for name, run in done.items()}
    title = f"MTAL beside joint and separate models: {settings.data.name}, {settings.data.align}s "
    title += f"in common, by {settings.data.domains}, seed {settings.seed}"
    plot_panels([panel(module, monitor, start, tests)], title, folder / FILE)
    metric = _SHORT[monitor.key.removeprefix("eval/")]
    said = [f"{name} {value:.4f}" for name, value in tests.items()]
    return f"{FILE}: test {metric} of MTAL {tested(module, monitor):.4f}, {', '.join(said)}"


def tested(run: FederatedRun, monitor: Monitor) -> float:
    """The test of the best round."""
    return run.results[monitor.key.replace("eval/", "test/")]


def panel(run: FederatedRun, monitor: Monitor, start: float, tests: dict[str, float]) -> Curves:
    """Draw validation from round 0 on, the test of the best round, and the tests of the others.

    Args:
        run: of MTAL.
        monitor: what its best round is chosen by.
        start: validation of the base model.
        tests: of the others, by name.
    """
    values = [start, *(row.get(monitor.key, math.nan) for row in run.history)]
    last = float(len(values) - 1)
    best = run.results.get("test/best_round", last)
    drawn = {
        "MTAL, validation": Curve(range(len(values)), [spread([value]) for value in values]),
        "MTAL, test of the best round": Curve([best], [spread([tested(run, monitor)])]),
    }
    for name, value in tests.items():
        drawn[f"{name}, test"] = Curve([0.0, last], [spread([value])] * 2)
    metric = _SHORT[monitor.key.removeprefix("eval/")]
    own = "MTAL, validation"
    better = better_of(not monitor.lower_is_better)
    roles = Roles(own, tuple(name for name in drawn if name != own), better)
    return Curves("assistance round", metric, drawn, roles=roles)
