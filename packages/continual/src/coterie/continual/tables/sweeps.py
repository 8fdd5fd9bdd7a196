"""Figure 4: F³CRec over its hyper-parameters ε, λ_KD and β, on validation and test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.continual.settings import Settings
from coterie.continual.tables.study import Study, averages, validations
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Lines, plot_lines
from coterie.core.tables.report import Report

# The paper's scale of ε for each data set (section 5.1).
_EPSILON_SCALE = {"ml-latest-small": 1e-5, "lastfm-2k": 1e-4}
_AXES = {"epsilon": "ε", "lambda_kd": "λ_KD", "beta": "β"}


def grids(data: str) -> dict[str, list[float]]:
    """List the values of every hyper-parameter: the paper's ranges, ε and β in double steps.

    Example:
        >>> grids("lastfm-2k")["epsilon"]
        [0.0001, 0.0003, 0.0005, 0.0007, 0.0009]
    """
    scale = _EPSILON_SCALE.get(data, 1e-3)
    return {
        "epsilon": [round(k * scale, 9) for k in (1, 3, 5, 7, 9)],
        "lambda_kd": [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0],
        "beta": [round(0.1 * k, 1) for k in range(11)],
    }


def sweep_figure(study: Study) -> Report:
    """Draw Figure 4."""
    settings = replace(study.settings, method="f3crec")
    points = {
        (name, value): _changed(settings, name, value)
        for name, values in grids(study.data).items()
        for value in values
    }
    results = study.run_all("Figure 4", points)
    rows: list[dict[str, Any]] = []
    plots, view, notes = [], [], list(_NOTES)
    for name, values in grids(study.data).items():
        runs = [results[name, value] for value in values]
        valid, test = (
            [validations(r) for r in runs],
            [averages(r, f"ndcg@{settings.top_k}") for r in runs],
        )
        for value, of_valid, of_test in zip(values, valid, test, strict=True):
            line = {"parameter": _AXES[name], "value": f"{value:g}"}
            for metric, numbers in (("valid", of_valid), ("test", of_test)):
                key = f"{metric}/average/ndcg@{settings.top_k}"
                rows.append(study.row("f3crec", key, numbers, None, parameter=name, value=value))
                line[metric] = str(spread(numbers))
            view.append(line)
        lines = {"validation": [spread(v) for v in valid], "test": [spread(v) for v in test]}
        log = name == "lambda_kd"
        plots.append(Lines(_AXES[name], values, lines, log, _current(settings, name)))
        best = int(np.argmax([np.mean(v) for v in valid]))
        notes.append(
            f"{_AXES[name]}: best on validation at {values[best]:g}, where the test gives "
            f"{spread(test[best])}; in use: {_current(settings, name):g}."
        )
    title = f"Figure 4, {study.data}: N@{settings.top_k} of F³CRec, {study.n_seeds}"
    file = study.file("figure4")
    y_label = f"N@{settings.top_k}, mean of D1 to D3"
    image = plot_lines(plots, y_label, title, study.folder / f"{file}.png")
    return Report(file, title, rows, view, notes, image)


_NOTES = (
    "One hyper-parameter at a time, the others as configured (dotted line in the figure). "
    "Validation is the best round's; choose on it, never on the test. The paper prints no numbers.",
)


def _changed(settings: Settings, name: str, value: float) -> Settings:
    if name == "beta":
        return replace(settings, temporal_mean=replace(settings.temporal_mean, beta=value))
    changed: dict[str, Any] = {name: value}
    return replace(settings, replay=replace(settings.replay, **changed))


def _current(settings: Settings, name: str) -> float:
    part = settings.temporal_mean if name == "beta" else settings.replay
    return float(getattr(part, name))
