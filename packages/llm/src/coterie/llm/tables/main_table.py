"""Table 1, overall performance on one data set, and Table 3, that of every client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.registry.data_sets import published
from coterie.core.settings.schema import changed
from coterie.core.style import Roles
from coterie.core.tables.dots import Dots
from coterie.core.tables.latex import Better
from coterie.core.tables.means import dots
from coterie.core.tables.plots import SHARE
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, column, known
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results
from coterie.llm.tables.study import (
    NAMES,
    Study,
    comparison_notes,
    evenness,
    imbalances,
    inequality,
    of_client,
    worst,
)

TABLES: dict[str, Any] = published("coterie.llm")
# Name of a data set here -> in the paper.
DATA_SETS = {"amazon-games": "Games", "microlens": "MicroLens", "amazon-books": "Book"}
# Backbone here -> the paper's nearest.
BACKBONES = {"tiny-text": "BIGRec", "recformer": "RecFormer", "": "none"}
COLUMNS = ("recall@10", "recall@20", "ndcg@10", "ndcg@20")


def table1(data: str, backbone: str, method: str) -> list[float] | None:
    """Give a row of Table 1, or None; ``backbone`` is "" for methods without one.

    Example:
        >>> table1("amazon-games", "recformer", "pplr")[0]
        0.0175
    """
    name = BACKBONES.get(backbone, backbone)
    return TABLES["table1"].get(DATA_SETS.get(data, ""), {}).get(name, {}).get(method)


def table3(data: str, method: str) -> tuple[list[float], float] | None:
    """Give a row of Table 3: five clients and the imbalance, NaN where it is printed wrong.

    Example:
        >>> table3("microlens", "central")[1]
        nan
    """
    row = TABLES["table3"].get(DATA_SETS.get(data, ""), {}).get(method)
    if row is None:
        return None
    return row["clients"], float("nan") if printed_wrong(data, method) else row["imbalance"]


def printed_wrong(data: str, method: str) -> bool:
    """Say whether the imbalance in a row of Table 3 does not follow from its clients."""
    return [DATA_SETS.get(data, ""), method] in TABLES["wrong_imbalances"]


# How strong the two mechanisms of PPLR are: s, p and w over the rounds.

PARTS = {
    "pplr/similarity": "s, attention to the peers",
    "pplr/difficulty": "p, difficulty",
    "pplr/warmup": "w, warm-up",
}
_SHOWN = (1, 2, 4, 8)


@dataclass(frozen=True)
class Extent:
    """Mean, smallest and largest value of a quantity over clients and seeds in one round."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def extents(results: Sequence[RunResult], name: str) -> list[Extent]:
    """Give mean and range over clients and seeds in every round that some run has."""
    courses = [result.course.get(name, []) for result in results]
    found = []
    for place in range(max(map(len, courses), default=0)):
        values = np.concatenate([course[place] for course in courses if place < len(course)])
        known = values[~np.isnan(values)]
        if known.size:
            found.append(Extent(float(known.mean()), float(known.min()), float(known.max())))
    return found


def add_mechanism(sheet: Sheet[Any], backbone: str, results: Sequence[RunResult]) -> None:
    """Add s, p and w of every round, in rows for programs; and say what some of them are.

    The notes give mean (smallest to largest) over clients and seeds, of the rounds `_SHOWN` and the
    last.
    """
    columns = {name: extents(results, name) for name in PARTS}
    for name, found in columns.items():
        for number, one in enumerate(found, 1):
            more = {"round": number, "low": one.low, "high": one.high}
            sheet.row("pplr", name, [one.mean], backbone=backbone, **more)
    lines = list(enumerate(zip(*columns.values(), strict=True), 1))
    for number, line in lines:
        if number in _SHOWN or number == len(lines):
            said = (f"{label[0]} {one}" for label, one in zip(PARTS.values(), line, strict=True))
            sheet.notes.append(f"{backbone}, round {number}: {', '.join(said)}")


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
    "untrained is the backbone, with what stands beside it, before the first round; it competes "
    "with the rounds on validation. Where something stands beside it, it is there on its own too.",
    "popularity counts interactions before the test. Rows without a language model learn from the "
    "public users too, on whom small language models are pre-trained; they are not measured.",
    "titles + popularity is a rule without training: TF-IDF cosine of an item's words (titles, "
    "genres, or both) and the history's, + a log(1 + count of the public users); words and a are "
    "chosen on validation. titles + all counts counts everybody, before what is asked for, as a "
    "masked sum over the organisations shows it; titles + own counts and own popularity count the "
    "client's own users, which never leaves it. titles is the cosine alone.",
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
        untrained = study.untrained(f"Table 1: {backbone}, untrained", backbone)
        for method, runs in {**untrained, **by_method}.items():
            _add(sheet, backbone, method, runs)
        sheet.notes += comparison_notes(backbone, by_method, OTHERS)
        add_mechanism(sheet, backbone, by_method["pplr"])
        if table1(study.data, backbone, "pplr") is not None:
            theirs = BACKBONES[backbone]
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


OF_CLIENTS = ("central", "fedavg", "pplr")
_IN_PAPER = "tiny-text"  # the paper's rows are BIGRec's

_CLIENT_NOTES = (
    "Recall@10 of every client on the test, mean ± standard deviation over seeds; every seed makes "
    "clusters of its own, numbered by size, the largest first. Imbalance is the median over seeds "
    "of (best - worst) / worst client; it is infinite where the worst finds nothing.",
)


def client_table(study: Study) -> Report:
    """Reproduce Table 3 for the study's data set."""
    sheet, panels = Sheet(study, *_CLIENT_NOTES), []
    for backbone, by_method in study.by_backbone("Table 3", OF_CLIENTS).items():
        for method, results in by_method.items():
            _add_clients(sheet, backbone, method, results)
        panels.append(_panel(backbone, by_method, study.settings.data.clients))
        sheet.notes += comparison_notes(backbone, by_method, ("fedavg", "central"))
    if printed_wrong(study.data, "central"):
        sheet.notes.append(
            "The paper prints an imbalance of 4.50 for BIGRec on MicroLens, which does not follow "
            "from its own clients: .0275 / .0031 - 1 = 7.87. It is left out."
        )
    columns = [name for line in sheet.lines for name in line if name.startswith("client ")]
    better: Better = dict.fromkeys(columns, "max")
    what = "Recall@10 of every client"
    return sheet.report("Table 3", what, panels, better=better, within=("backbone",))


def _panel(backbone: str, by_method: Results, clients: int) -> Dots:
    """Dots of all methods for every client."""
    groups = {
        f"client {c + 1}": {NAMES[method]: of_client(part, c) for method, part in by_method.items()}
        for c in range(clients)
    }
    own = Roles(NAMES["pplr"], better="higher")
    return dots("Recall@10", groups, title=backbone, roles=own, bounds=SHARE)


def _add_clients(
    sheet: Sheet[Study], backbone: str, method: str, results: Sequence[RunResult]
) -> None:
    line = sheet.line(backbone=backbone, method=NAMES[method])
    nothing = [None] * sheet.study.settings.data.clients
    papers, imbalance = _printed(sheet.study, backbone, method) or (nothing, None)
    for client, paper in enumerate(papers):
        label, more = f"client {client + 1}", {"backbone": backbone, "client": client}
        recall = of_client(results, client)
        sheet.cell(line, label, method, "test/recall@10", recall, paper, **more)
    unequal = imbalances(results)
    median = [float(np.median(unequal))]
    sheet.row(method, "test/imbalance_median", median, imbalance, backbone=backbone)
    line |= inequality(unequal, imbalance)


def _printed(
    study: Study, backbone: str, method: str
) -> tuple[Sequence[float | None], float | None] | None:
    if backbone != _IN_PAPER or study.settings.data.clients != 5:
        return None
    return table3(study.data, method)
