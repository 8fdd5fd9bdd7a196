"""Table 1: overall performance on one data set, with and without language models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.settings.schema import changed
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, column, known
from coterie.core.tables.sheet import Sheet, cell
from coterie.llm.published import BACKBONES as PAPER_BACKBONES
from coterie.llm.published import COLUMNS, table1
from coterie.llm.tables.contrast import comparison_notes
from coterie.llm.tables.mechanism import add_mechanism
from coterie.llm.tables.runs import evenness, imbalances, inequality, worst
from coterie.llm.tables.study import NAMES, Study

METHODS = ("central", "fedavg", "fedprox", "local", "pplr")
OTHERS = ("fedavg", "fedprox", "local")
_LABELS = ("R@10", "R@20", "N@10", "N@20")
# Nothing needs to cross where nobody works together, or where everything is in one place.
_SILENT = {"central", "local"}

_NOTES = (
    "Mean ± standard deviation over seeds on the test users of all clients. Imbalance is the "
    "median over seeds of (best - worst) / worst client by R@10; it is infinite where the worst "
    "client finds nothing, in as many seeds as said. The same users and organisations in all rows.",
    "trained: numbers that a client trains. Bytes are those of training, a client and round; a "
    "client is an organisation with a language model, a single user in FedMF, LightFR and "
    "FedPerGNN. Nothing needs to cross where all data are in one place, nor where nobody sends.",
    "popularity counts interactions before the test. Rows without a language model learn from the "
    "public users too, on whom small language models are pre-trained; they are not measured.",
    "titles + popularity is a rule without training: TF-IDF cosine of an item's words (titles, "
    "genres, or both) and the history's, + a log(1 + count of the public users); words and a are "
    "chosen on validation. titles + all counts counts everybody, before what is asked for, as a "
    "masked sum over the organisations shows it.",
)
_NO_WORDS = "No row titles + popularity: the items of these data have neither titles nor genres."


def main_table(study: Study) -> Report:
    """Reproduce Table 1 for the study's data set."""
    sheet = Sheet(study, *_NOTES)
    trivial = study.rows_without("Table 1: without a language model", study.without_backbone)
    clear = changed(study.settings, {"method": "fedpergnn", "fedpergnn.noise": 0.0})
    trivial |= study.run_all("Table 1: FedPerGNN without noise", {"fedpergnn-clear": clear})
    if "titles" not in trivial:
        sheet.notes.append(_NO_WORDS)
    for name, results in trivial.items():
        _add(sheet, "", name, results)
    for backbone, by_method in study.by_backbone("Table 1", METHODS).items():
        for method, results in by_method.items():
            _add(sheet, backbone, method, results)
        sheet.notes += comparison_notes(backbone, by_method, OTHERS)
        add_mechanism(sheet, backbone, by_method["pplr"])
        if table1(study.data, backbone, "pplr") is not None:
            theirs = PAPER_BACKBONES[backbone]
            sheet.notes.append(f"The paper's numbers beside {backbone} are those of {theirs}.")
    what = f"{study.n_seeds}, {study.settings.data.clients} clients"
    return sheet.report("Table 1", what, seeds=False)


def _add(sheet: Sheet[Study], backbone: str, method: str, results: Sequence[RunResult]) -> None:
    """Add a line for people and rows for programs, one a number."""
    line = sheet.line(backbone=backbone, method=NAMES[method])
    papers = table1(sheet.study.data, backbone, method)
    values = {f"test/{n}": column(results, f"test/{n}") for n in COLUMNS}
    printed = dict(zip(values, papers, strict=True)) if papers else {}
    for label, name in zip(_LABELS, values, strict=True):
        line[label] = cell(values[name], printed.get(name))
    values |= {f"valid/{n}": column(results, f"valid/{n}") for n in COLUMNS}
    unequal = imbalances(results)
    line |= inequality(unequal)
    values["test/imbalance_median"] = [float(np.nanmedian(unequal))]
    values["test/imbalance_infinite"] = [float(np.isinf(unequal).sum())]
    values["test/evenness"] = evenness(results)
    values["test/recall@10_worst"] = worst(results)
    costs = ("trained", "up", "down", "rounds", "best_round", "seconds")
    values |= {name: column(results, name) for name in costs}
    for name, numbers in values.items():
        if known(numbers):
            sheet.row(method, name, numbers, printed.get(name), backbone=backbone)
    for name, unit in (("trained", ""), ("up", " B"), ("down", " B")):
        shown = [] if unit and method in _SILENT else known(values[name])
        line[f"{name}{unit}"] = f"{np.mean(shown):,.0f}" if shown else None
