"""Figure 4: F³CRec over its hyper-parameters ε, λ_KD and β, on validation and test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.continual.tables.study import Study, averages, validations
from coterie.core.settings.schema import changed, values_of
from coterie.core.tables.paired import spread
from coterie.core.tables.plots import Lines
from coterie.core.tables.report import Report
from coterie.core.tables.sheet import Sheet, cell

# The paper's scale of ε for each data set (section 5.1).
_EPSILON_SCALE = {"ml-latest-small": 1e-5, "lastfm-2k": 1e-4}
_AXES = {"epsilon": "ε", "lambda_kd": "λ_KD", "beta": "β"}
_KEYS = {"epsilon": "replay.epsilon", "lambda_kd": "replay.lambda_kd", "beta": "temporal_mean.beta"}


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
    settings, top_k = replace(study.settings, method="f3crec"), study.settings.top_k
    points = {
        (name, value): changed(settings, {_KEYS[name]: value})
        for name, values in grids(study.data).items()
        for value in values
    }
    results = study.run_all("Figure 4", points)
    sheet, plots, usual = Sheet(study, *_NOTES), [], values_of(settings)
    for name, values in grids(study.data).items():
        runs, current = [results[name, value] for value in values], usual[_KEYS[name]]
        found = {
            "valid": [validations(part, f"ndcg@{top_k}") for part in runs],
            "test": [averages(part, f"ndcg@{top_k}") for part in runs],
        }
        for place, value in enumerate(values):
            line = sheet.line(parameter=_AXES[name], value=f"{value:g}")
            for split, numbers in found.items():
                key, at = f"{split}/average/ndcg@{top_k}", numbers[place]
                sheet.cell(line, split, "f3crec", key, at, parameter=name, value=value)
        labels = {"validation": "valid", "test": "test"}
        lines = {label: list(map(spread, found[split])) for label, split in labels.items()}
        y_label, log = f"N@{top_k}, mean of D1 to D3", name == "lambda_kd"
        plots.append(Lines(_AXES[name], values, lines, log, current, y_label))
        best = int(np.argmax([np.mean(v) for v in found["valid"]]))
        sheet.notes.append(
            f"{_AXES[name]}: best on validation at {values[best]:g}, where the test gives "
            f"{cell(found['test'][best])}; in use: {current:g}."
        )
    return sheet.report("Figure 4", f"N@{top_k} of F³CRec", plots)


_NOTES = (
    "One hyper-parameter at a time, the others as configured (dotted line in the figure). "
    "Validation is the best round's; choose on it, never on the test. The paper prints no numbers.",
)
