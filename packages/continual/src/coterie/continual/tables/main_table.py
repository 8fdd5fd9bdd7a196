"""Table 2: methods and backbones on one data set; Figure 3 draws its improvements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from coterie.continual.published import table2
from coterie.continual.settings import Method
from coterie.continual.tables.contrast import (
    Contrast,
    best_of,
    differences,
    noise_note,
    over_others,
)
from coterie.continual.tables.runs import RunResult
from coterie.continual.tables.study import (
    BACKBONE_NAMES,
    METRIC_NAMES,
    NAMES,
    Study,
    averages,
)
from coterie.core.tables.paired import ALPHA, spread
from coterie.core.tables.plots import plot_bars, plot_differences
from coterie.core.tables.report import Report

Results = Mapping[str, Sequence[RunResult]]
BASELINES = ("ft", "reg", "kd", "rlp2", "spp")
METHODS: tuple[Method, ...] = tuple(m for m in get_args(Method) if m in (*BASELINES, "f3crec"))

_NOTES = (
    "Mean over seeds; ± is the standard deviation over seeds; the paper's number is in brackets. "
    "Improv. is over FT, in per cent.",
    "F³CRec minus it: mean difference over seeds, p of a paired t-test over seeds, adjusted for "
    "the number of baselines (Holm). * p <= 0.05 against the best baseline, unadjusted, as in the "
    "paper.",
    "popularity counts training interactions (of all blocks so far, or of the tested block); "
    "centralised MF is BPR-MF with Adam, trained anew on the training data of all blocks so far, "
    "or block by block from where it was.",
)


def main_table(study: Study) -> Report:
    """Reproduce Table 2 for the study's data set."""
    rows: list[dict[str, Any]] = []
    view: list[dict[str, Any]] = []
    notes: list[str] = list(_NOTES)
    trivial = study.references("Table 2: references")
    runs = {backbone: _runs(study, backbone) for backbone in study.backbones}
    for metric in ("ndcg", "recall"):
        name = f"{metric}@{study.settings.top_k}"
        for method, results in trivial.items():
            rows += _rows(study, None, method, metric, results)
            view.append(_line(study, None, method, metric, results))
        for backbone, by_method in runs.items():
            found = over_others(by_method, name)
            best = best_of({m: by_method[m] for m in found}, name)
            for method, results in by_method.items():
                rows += _rows(study, backbone, method, metric, results)
                line = _line(study, backbone, method, metric, results, by_method["ft"])
                view.append(line | _comparison(method, found, best))
            notes += _sentences(study, backbone, metric, found, best)
    title = f"Table 2, {study.data}: {study.n_seeds}"
    return Report(study.file("table2"), title, rows, view, notes, _draw(study, runs, title))


def _draw(study: Study, runs: Mapping[str, Results], title: str) -> Path:
    """Draw what F³CRec has over each baseline, one colour a backbone."""
    metric = f"ndcg@{study.settings.top_k}"
    series = {
        BACKBONE_NAMES[backbone]: differences(over_others(results, metric))
        for backbone, results in runs.items()
    }
    path = study.folder / f"{study.file('table2')}.png"
    return plot_differences(series, f"F³CRec minus it, {metric.upper()}", title, path)


def improvement_figure(study: Study) -> Report:
    """Draw Figure 3: improvement of F³CRec and of the second best over FT, in per cent."""
    rows: list[dict[str, Any]] = []
    bars: dict[str, dict[str, float]] = {}
    name = f"ndcg@{study.settings.top_k}"
    for backbone in study.backbones:
        results = _runs(study, backbone)
        second = best_of({m: r for m, r in results.items() if m != "f3crec"}, name)
        group = {}
        for label, method in (("F³CRec", "f3crec"), ("second best", second)):
            values = _improvements(results[method], results["ft"], name)
            paper = _paper(study, backbone, method, "ndcg", 4)
            rows.append(study.row(method, "improvement", values, paper, backbone=backbone))
            group[label] = rows[-1]["mean"]
        group |= _paper_bars(study, backbone)
        bars[BACKBONE_NAMES[backbone]] = group
    title = f"Figure 3, {study.data}: improvement of N@{study.settings.top_k} over FT"
    file = study.file("figure3")
    image = plot_bars(bars, "improvement over FT, %", title, study.folder / f"{file}.png")
    note = "Mean over seeds of the improvement over FT with the same seed, in per cent."
    return Report(file, title, rows, notes=[note], figure=image)


def _runs(study: Study, backbone: str) -> dict[str, list[RunResult]]:
    title = f"Table 2: {BACKBONE_NAMES[backbone]}"
    return study.methods(title, study.tuned(backbone), METHODS)


def _rows(
    study: Study, backbone: str | None, method: str, metric: str, results: Any
) -> list[dict[str, Any]]:
    """Rows for programs, one a block and one for the average."""
    found = []
    for key, place in _places(results).values():
        name = f"test/{key}/{metric}@{study.settings.top_k}"
        values = [result.metrics[name] for result in results]
        paper = _paper(study, backbone, method, metric, place)
        found.append(study.row(method, name, values, paper, backbone=backbone))
    return found


def _places(results: Sequence[RunResult]) -> dict[str, tuple[str, int | None]]:
    """Columns: label -> name in a run's metrics, place in the paper's rows."""
    last = len(results[0].users) - 1
    as_paper = last == 3
    blocks = {f"D{t}": (f"block{t}", t - 1 if as_paper else None) for t in range(1, last + 1)}
    return {**blocks, "Avg": ("average", 3 if as_paper else None)}


def _line(
    study: Study,
    backbone: str | None,
    method: str,
    metric: str,
    results: Sequence[RunResult],
    ft: Sequence[RunResult] = (),
) -> dict[str, Any]:
    """Row for people, as in the paper."""
    name = f"{metric}@{study.settings.top_k}"
    line: dict[str, Any] = {
        "metric": f"{METRIC_NAMES[metric]}@{study.settings.top_k}",
        "backbone": BACKBONE_NAMES[backbone] if backbone else "",
        "method": NAMES[method],
    }
    rows = _rows(study, backbone, method, metric, results)
    for row, label in zip(rows, _places(results), strict=True):
        text = str(spread(averages(results, name))) if label == "Avg" else f"{row['mean']:.4f}"
        line[label] = text if row["paper"] is None else f"{text} ({row['paper']:.4f})"
    line["Improv."] = None
    if ft and method != "ft":
        text = f"{np.mean(_improvements(results, ft, name)):+.1f}"
        paper = _paper(study, backbone, method, metric, 4)
        line["Improv."] = text if paper is None else f"{text} ({paper:+.1f})"
    return line


def _comparison(method: str, found: Mapping[str, Contrast], best: str) -> dict[str, str]:
    if method == "f3crec":
        star = found[best].seeds.difference > 0 and found[best].seeds.p <= ALPHA
        return {"F³CRec minus it": "*" if star else ""}
    return {"F³CRec minus it": str(found[method])}


def _sentences(
    study: Study, backbone: str, metric: str, found: Mapping[str, Contrast], best: str
) -> list[str]:
    label = f"{BACKBONE_NAMES[backbone]}, {METRIC_NAMES[metric]}@{study.settings.top_k}"
    against = dict.fromkeys(("ft", best))
    sentences = [found[m].sentence("F³CRec", NAMES[m], label) for m in against]
    return [*sentences, noise_note(found, label)]


def _improvements(
    results: Sequence[RunResult], ft: Sequence[RunResult], metric: str
) -> list[float]:
    """Per cent over FT, one value a seed."""
    pairs = zip(averages(results, metric), averages(ft, metric), strict=True)
    return [100 * (value / base - 1) if base else float("nan") for value, base in pairs]


def _paper(
    study: Study, backbone: str | None, method: str, metric: str, place: int | None
) -> float | None:
    if backbone is None or place is None or study.settings.top_k != 20:
        return None
    row = table2(study.data, metric, backbone, method)
    return None if row is None else row[place]


def _paper_bars(study: Study, backbone: str) -> dict[str, float]:
    """The paper's own two bars, where it has them."""
    first = _paper(study, backbone, "f3crec", "ndcg", 4)
    others = [_paper(study, backbone, method, "ndcg", 4) for method in BASELINES]
    known = [value for value in others if value is not None]
    if first is None or not known:
        return {}
    return {"F³CRec (paper)": first, "second best (paper)": max(known)}
