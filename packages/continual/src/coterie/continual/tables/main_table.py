"""Tables 2, 3 and 6: methods, backbones and ablations; Figure 3 draws the improvements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from coterie.continual.published import METRICS, TABLES, table2
from coterie.continual.tables.study import (
    BACKBONE_NAMES,
    CONSUMED,
    NAMES,
    OWN,
    PROTOCOLS,
    Study,
    averages,
    best_of,
    differences,
    improvements,
    in_short,
    label_of,
    later_blocks,
    noise_note,
    over_others,
    over_users,
    sentence,
    validations,
)
from coterie.core.style import Roles
from coterie.core.tables.means import dots
from coterie.core.tables.paired import ALPHA, Contrast, contrasts, spread
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.sheet import Line, Sheet, cell
from coterie.core.tables.study import Results

BASELINES = ("ft", "reg", "kd", "rlp2", "spp")
METHODS = (*BASELINES, OWN)

_NOTES = (
    "Mean over seeds; ± is the standard deviation over seeds; the paper's number is in brackets. "
    "Improv. is over FT, in per cent.",
    "F³CRec minus it: mean difference over seeds, p of a paired t-test over seeds, adjusted for "
    "the number of baselines (Holm). * p <= 0.05 against the best baseline, unadjusted, as in the "
    "paper; from three seeds on.",
    CONSUMED,
    "popularity counts training interactions (of all blocks so far, or of the tested block); "
    "centralised MF is BPR-MF with Adam, trained anew on the training data of all blocks so far, "
    "or block by block from where it was.",
)


def main_table(study: Study) -> Report:
    """Reproduce Table 2 for the study's data set."""
    sheet = Sheet(study, *_NOTES)
    trivial = study.rows_without("Table 2: references", study.references)
    runs = study.by_backbone("Table 2", METHODS)
    for metric, protocol in product(METRICS, PROTOCOLS):
        name = f"{metric}@{study.settings.top_k}{protocol}"
        for method, results in trivial.items():
            _line(sheet, None, method, name, results)
        for backbone, by_method in runs.items():
            found = over_others(by_method, name)
            best = best_of({m: by_method[m] for m in found}, name)
            for method, results in by_method.items():
                line = _line(sheet, backbone, method, name, results, by_method["ft"])
                line["F³CRec minus it"] = (
                    _star(found[best]) if method == OWN else in_short(found[method])
                )
            label = f"{BACKBONE_NAMES[backbone]}, {label_of(name)}"
            for other in dict.fromkeys(("ft", best)):
                users = over_users(by_method, other, name)
                sheet.notes.append(sentence(found[other], label, users))
            sheet.notes.append(noise_note(found, label))
    ndcg = f"ndcg@{study.settings.top_k}"
    drawn = {BACKBONE_NAMES[b]: over_others(results, ndcg) for b, results in runs.items()}
    columns = [name for line in sheet.lines for name in line if name[0] == "D" or name == "Avg"]
    return sheet.report(
        *("Table 2", study.n_seeds, [differences(drawn, ndcg.upper())]),
        seeds=False,
        better=dict.fromkeys(columns, "max"),
        within=("metric", "backbone"),
    )


def improvement_figure(study: Study) -> Report:
    """Draw Figure 3: improvement of F³CRec and of the second best over FT, in per cent."""
    note = "Mean over seeds of the improvement over FT with the same seed, in per cent."
    sheet, groups, top_k = Sheet(study, note), {}, study.settings.top_k
    name = f"ndcg@{top_k}"
    for backbone, results in study.by_backbone("Table 2", METHODS).items():
        second = best_of({m: r for m, r in results.items() if m != OWN}, name)
        group: dict[str, float] = {}
        for label, method in (("F³CRec", OWN), ("second best", second)):
            values = improvements(averages(results[method], name), averages(results["ft"], name))
            paper = _paper(study, backbone, method, name, 4)
            sheet.row(method, "improvement", values, paper, backbone=backbone)
            group[label] = spread(values).mean
        group |= _paper_bars(study, backbone)
        groups[BACKBONE_NAMES[backbone]] = {name: [value] for name, value in group.items()}
    about = Roles("F³CRec", better="higher")
    panel = dots("improvement over FT, %", groups, roles=about)
    return sheet.report("Figure 3", f"improvement of N@{top_k} over FT", [panel], seeds=False)


def _line(
    sheet: Sheet[Study],
    backbone: str | None,
    method: str,
    name: str,
    results: Sequence[RunResult],
    ft: Sequence[RunResult] = (),
) -> Line:
    """Add a line as in the paper, and rows for programs, one a block and one for the average."""
    study = sheet.study
    line = sheet.line(
        metric=label_of(name),
        backbone=BACKBONE_NAMES[backbone] if backbone else "",
        method=NAMES[method],
    )
    blocks = later_blocks(results[0])
    as_paper = len(blocks) == 3
    for place, key in enumerate((*blocks, "average")):
        values = column(results, f"test/{key}/{name}")
        paper = _paper(study, backbone, method, name, place if as_paper else None)
        label = "Avg" if key == "average" else f"D{place + 1}"
        sheet.row(method, f"test/{key}/{name}", values, paper, backbone=backbone)
        line[label] = cell(values if key == "average" else [float(np.mean(values))], paper)
    line["Improv."] = None
    if ft and method != "ft":
        gains = improvements(averages(results, name), averages(ft, name))
        paper = _paper(study, backbone, method, name, 4)
        line["Improv."] = f"{np.mean(gains):+.1f}" + ("" if paper is None else f" ({paper:+.1f})")
    return line


def _star(found: Contrast) -> str:
    told = found.verdict != "not tested" and found.found.p <= ALPHA
    return "*" if told and found.found.difference > 0 else ""


def _paper(
    study: Study, backbone: str | None, method: str, name: str, place: int | None
) -> float | None:
    """The paper's value of a metric as "ndcg@20"; None where it has none."""
    metric, _, length = name.partition("@")
    if backbone is None or place is None or length != "20":
        return None
    row = table2(study.data, metric, backbone, method)
    return None if row is None else row[place]


def _paper_bars(study: Study, backbone: str) -> Mapping[str, float]:
    """The paper's own two bars, where it has them."""
    ndcg = f"ndcg@{study.settings.top_k}"
    first = _paper(study, backbone, OWN, ndcg, 4)
    others = [_paper(study, backbone, method, ndcg, 4) for method in BASELINES]
    known = [value for value in others if value is not None]
    if first is None or not known:
        return {}
    return {"F³CRec (paper)": first, "second best (paper)": max(known)}


# Tables 3 and 6: F³CRec without its client side, or without its server side.
#
# The last columns are of validation, by which settings are chosen: a component is worth keeping
# where it helps there. They mean most with seeds that no search has seen.

CLIENT_SIDE = ("f3crec", "f3crec-wo-cc", "f3crec-wo-arm", "ft")
SERVER_SIDE = ("f3crec", "f3crec-wo-sc", "f3crec-wo-itm", "ft")


def client_side_table(study: Study) -> Report:
    """Reproduce Table 3, on all backbones or the one named."""
    return _table(study, "Table 3", "client", CLIENT_SIDE)


def server_side_table(study: Study) -> Report:
    """Reproduce Table 6, on all backbones or the one named."""
    return _table(study, "Table 6", "server", SERVER_SIDE)


def _table(study: Study, table: str, side: str, methods: tuple[str, ...]) -> Report:
    published = TABLES[table.lower().replace(" ", "")].get(study.data, {})
    sheet = Sheet(
        study,
        "Mean ± standard deviation over seeds (the paper's number, FedMF only). Decrease is from "
        "F³CRec, in per cent; p is of a paired t-test over seeds, adjusted for three comparisons "
        "(Holm).",
        CONSUMED,
    )
    drawn: dict[str, Mapping[str, Contrast]] = {}
    for backbone, results in study.by_backbone(table, methods).items():
        in_paper = backbone == "fedmf" and study.settings.top_k == 20
        found = _add(sheet, backbone, results, published if in_paper else {})
        drawn[f"{BACKBONE_NAMES[backbone]}, test"] = found[f"ndcg@{study.settings.top_k}"]
        drawn[f"{BACKBONE_NAMES[backbone]}, validation"] = found["validation"]
    panel = differences(drawn, f"NDCG@{study.settings.top_k}")
    return sheet.report(table, f"ablations on the {side}", [panel])


def _add(
    sheet: Sheet[Study], backbone: str, results: Results, published: Mapping[str, Any]
) -> dict[str, Mapping[str, Contrast]]:
    """Add the part of one backbone: the metrics of the test, and what validation says."""
    top_k, name = sheet.study.settings.top_k, BACKBONE_NAMES[backbone]
    lines = {method: sheet.line(backbone=name, method=NAMES[method]) for method in results}
    compared: dict[str, Mapping[str, Contrast]] = {}
    columns = [f"{metric}@{top_k}{protocol}" for protocol in PROTOCOLS for metric in METRICS]
    for place, metric in enumerate((*columns, "validation")):
        tested = metric if metric in columns else None
        if tested:
            label, key = label_of(tested), f"test/average/{tested}"
            values = {method: averages(runs, tested) for method, runs in results.items()}
        else:
            label, key = f"validation N@{top_k}", f"valid/average/ndcg@{top_k}"
            values = {
                method: validations(runs, f"ndcg@{top_k}") for method, runs in results.items()
            }
        for method, numbers in values.items():
            printed = published.get(method, ())
            paper = printed[place] if tested and place < len(printed) else None
            sheet.cell(lines[method], label, method, key, numbers, paper, backbone=backbone)
            if tested and method != OWN:
                decrease = f"{100 * (np.mean(numbers) / np.mean(values[OWN]) - 1):+.1f}"
                if paper is not None:
                    less = TABLES["decreases"][sheet.study.data][method][place]
                    decrease += f" ({less:+.1f})"
                lines[method][f"{label} decrease"] = decrease
        compared[metric] = contrasts(values, OWN)
        for method, contrast in compared[metric].items():
            lines[method][f"{label}: F³CRec minus it"] = in_short(contrast)
            users = over_users(results, method, tested) if tested else None
            sheet.notes.append(sentence(contrast, f"{name}, {label}", users))
        sheet.notes.append(noise_note(compared[metric], f"{name}, {label}"))
    return compared
