"""Figure 3b of PPLR, measured: time and memory of a client's training step over k."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.plots import Lines, plot_panels
from coterie.llm.cost.step_cost import StepCost

_MEGA, _MILLI = 1e6, 1e-3


def rows(found: Sequence[StepCost]) -> list[dict[str, Any]]:
    """Tabulate for people; times are medians over the repetitions."""
    return [
        {
            "k": "all (FedAvg)" if step.k is None else str(step.k),
            "client ms": statistics.median(step.seconds) / _MILLI,
            "server ms": statistics.median(step.server_seconds) / _MILLI,
            "model MB": step.model / _MEGA,
            "optimizer MB": step.optimizer / _MEGA,
            "activations MB": step.activations / _MEGA,
            "memory MB": step.memory / _MEGA,
        }
        for step in found
    ]


def plain_rows(found: Sequence[StepCost]) -> list[dict[str, Any]]:
    """Tabulate for programs, in seconds and bytes."""
    return [{**vars(step), "memory": step.memory} for step in found]


def draw(found: Sequence[StepCost], path: Path) -> Path:
    """Draw time and memory over k, with the whole model's beside them, as PNG.

    Args:
        found: as `measure_steps` gives it, the whole model first.
        path: file to write.

    Raises:
        UserError: the file cannot be written.
    """
    return plot_panels(
        [
            _panel(found, "time of a step (ms)", lambda s: [t / _MILLI for t in s.seconds]),
            _panel(found, "memory of a step (MB)", lambda s: [s.memory / _MEGA]),
        ],
        "What a client's training step costs (its own part)",
        path,
    )


def _panel(
    found: Sequence[StepCost], y_label: str, values: Callable[[StepCost], list[float]]
) -> Lines:
    whole, split = found[0], found[1:]
    k = [step.k for step in split if step.k is not None]
    lines: dict[str, list[Spread]] = {
        "PPLR": [spread(values(step)) for step in split],
        "FedAvg (whole model)": [spread(values(whole))] * len(k),
    }
    return Lines("k, layers below the server's", k, lines, y_label=y_label)
