"""Figure 3b of PPLR, measured: time and memory of a client's training step over k."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Lines, plot_panels
from coterie.llm.cost.formulas import MEGA
from coterie.llm.cost.step_cost import StepCost

_MILLI = 1e-3


def rows(found: Sequence[StepCost]) -> list[dict[str, Any]]:
    """Tabulate for people; times are medians over the repetitions."""
    return [
        {
            "k": "all (FedAvg)" if step.k is None else str(step.k),
            "client ms": statistics.median(step.seconds) / _MILLI,
            "server ms": statistics.median(step.server_seconds) / _MILLI,
            "model MB": step.model / MEGA,
            "optimizer MB": step.optimizer / MEGA,
            "activations MB": step.activations / MEGA,
            "memory MB": step.memory / MEGA,
        }
        for step in found
    ]


def plain_rows(found: Sequence[StepCost]) -> list[dict[str, Any]]:
    """Tabulate for programs, in seconds and bytes."""
    return [{**vars(step), "memory": step.memory} for step in found]


def draw(found: Sequence[StepCost], path: Path) -> Path:
    """Draw `panels` as PNG.

    Raises:
        UserError: the file cannot be written.
    """
    panels = step_panels(found, "FedAvg (whole model)")
    return plot_panels(panels, "What a client's training step costs (its own part)", path)


def step_panels(found: Sequence[StepCost], whole: str) -> list[Lines]:
    """Make the plots of `draw`; ``whole`` names the line of the whole model."""
    one, split = found[0], found[1:]
    k = [step.k for step in split if step.k is not None]
    measures: dict[str, Callable[[StepCost], list[float]]] = {
        "time of a step (ms)": lambda step: [t / _MILLI for t in step.seconds],
        "memory of a step (MB)": lambda step: [step.memory / MEGA],
    }
    return [
        Lines(
            "k, layers below the server's",
            k,
            {"PPLR": [spread(of(step)) for step in split], whole: [spread(of(one))] * len(k)},
            y_label=label,
        )
        for label, of in measures.items()
    ]
