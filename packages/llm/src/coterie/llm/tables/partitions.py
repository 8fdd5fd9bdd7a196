"""Table 4, which the paper has not: where clients are different tasks, and who gains by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.data.sources.catalogue import load_all
from coterie.core.style import Roles
from coterie.core.tables.means import dots
from coterie.core.tables.paired import Contrast, gains, rank
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results
from coterie.llm.settings import Method, Settings
from coterie.llm.tables.study import NAMES, Study, imbalances, inequality, worst

BASE = "fedavg"
RULES = ("popularity", "own-popularity", "titles-all", "titles-own")
"""Without training, so that what is best among the trained can be seen beside them."""
METHODS: tuple[Method, ...] = ("fedavg", "local", "fedavg-tuned", "fedavg-head", "fedamp", "pplr")
PARTITIONS: Mapping[str, Mapping[str, Any]] = {
    "k-means": {"partition": "k-means"},
    "genres": {"partition": "genres"},
    "shops, δ = 0.1": {"partition": "shops", "skew": 0.1},
    "shops, δ = 1": {"partition": "shops", "skew": 1.0},
}
_MEASURES = {"R@10": "test/recall@10", "N@10": "test/ndcg@10"}
_WORST = "R@10 of the worst client"

_NOTES = (
    "local - FedAvg: Recall@10 of training alone minus that of FedAvg, on the same users. Where it "
    "is not above 0 clients are no different tasks, and there is nothing to personalise. minus "
    "FedAvg: mean difference in Recall@10, its 95 % interval, p of a paired t-test over seeds, and "
    "Holm's for the number of methods in that partition.",
    "Mean ± standard deviation over seeds on the test users of all clients; users, and accounts in "
    "shops, are others in every partition, so its rows are comparable with one another only. "
    "Imbalance is the median over seeds of (best - worst) / worst client by R@10.",
    "Rows without a backbone are rules without training: popularity of all users, popularity among "
    "the client's own users (own popularity), which never leaves it, and each beside the TF-IDF "
    "cosine of titles or genres; their strengths are chosen on validation.",
)


def partition_table(study: Study) -> Report:
    """Compare methods that personalise with FedAvg on clients of several kinds."""
    sheet, panels, kinds = Sheet(study, *_NOTES), [], _kinds(study)
    for backbone in study.backbones:
        settings = study.tuned(backbone)
        runs = study.run_all(f"Table 4: {backbone}", _variants(settings, kinds))
        beside = study.references_with("Table 4: rules", _rules(study, kinds))
        gained: dict[str, dict[str, list[float]]] = {}
        for kind in kinds:
            results: Results = {method: runs[kind, method] for method in _methods(settings)}
            rules: Results = {name: part for (of, name), part in beside.items() if of == kind}
            _add(sheet, backbone, kind, results, rules)
            gained[kind] = _differences(results)
        about = Roles(NAMES["pplr"], better="higher")
        panels.append(dots("Recall@10 minus FedAvg's", gained, title=backbone, roles=about))
    if 1 < len(kinds) < len(PARTITIONS):
        sheet.notes.append("No partition genres: the items of these data have no genres or brands.")
    what = f"local minus FedAvg, {study.n_seeds}, {study.settings.data.clients} clients"
    return sheet.report("Table 4", what, panels, seeds=False)


def _kinds(study: Study) -> dict[str, Mapping[str, Any]]:
    """Partitions that the data allow, or the one that the user names by ``--data.partition``."""
    if "data.partition" in study.configuration.given.flags:
        own = study.settings.data
        found = {"partition": own.partition, "skew": own.skew}
        return {f"shops, δ = {own.skew:g}" if own.partition == "shops" else own.partition: found}
    items = load_all(study.settings.data)
    known = items.genres is not None or items.brands is not None
    return {kind: how for kind, how in PARTITIONS.items() if known or kind != "genres"}


def _variants(
    settings: Settings, kinds: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, str], Settings]:
    return {
        (kind, method): replace(settings, method=method, data=replace(settings.data, **how))
        for kind, how in kinds.items()
        for method in _methods(settings)
    }


def _methods(settings: Settings) -> tuple[Method, ...]:
    """Those of `METHODS` that can be run: a bias that stays at clients counts nobody else's."""
    if settings.expert.of_all == "everybody":
        return tuple(method for method in METHODS if method != "fedavg-head")
    return METHODS


def _rules(
    study: Study, kinds: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, str], tuple[str, Settings]]:
    """The rules that the items allow, in every partition."""
    own = study.settings
    return {
        (kind, name): (name, replace(own, data=replace(own.data, **how)))
        for kind, how in kinds.items()
        for name in RULES
        if name in study.rules
    }


def over_base(results: Results) -> dict[str, dict[str, Contrast]]:
    """Measure -> method -> the method minus FedAvg."""
    found = {
        label: {m: column(part, name) for m, part in results.items()}
        for label, name in _MEASURES.items()
    }
    found[_WORST] = {m: worst(part) for m, part in results.items()}
    return {label: gains(values, BASE) for label, values in found.items()}


def _add(sheet: Sheet[Study], backbone: str, kind: str, results: Results, rules: Results) -> None:
    """Add a line a rule and method, rows for programs, and what is to be said of a partition."""
    found = over_base(results)
    local = found["R@10"]["local"].found.difference
    for method, part in {**rules, **results}.items():
        line = sheet.line(backbone=backbone if method in results else "", partition=kind)
        line |= {"local - FedAvg": f"{local:+.4f}", "method": NAMES[method]}
        line |= {label: cell(column(part, name)) for label, name in _MEASURES.items()}
        unequal = imbalances(part)
        line |= inequality(unequal) | {"worst client": cell(worst(part))}
        contrast = found["R@10"].get(method)
        said = "" if contrast is None else replace(contrast, other="").text().strip()
        line["minus FedAvg"] = said or None
        _rows(sheet, method, part, {"backbone": backbone, "partition": kind})
    for measure, group in found.items():
        for method, contrast in group.items():
            tested = {"p": contrast.found.p, "holm": contrast.p}
            name, values = f"{measure} minus FedAvg", [contrast.found.difference]
            sheet.row(method, name, values, backbone=backbone, partition=kind, **tested)
    sheet.notes.append(verdict(f"{backbone}, {kind}", found, results))
    sheet.notes.append(untrained(f"{backbone}, {kind}", rules, results))


def untrained(where: str, rules: Results, results: Results) -> str:
    """Say what the best rule without training finds, and what the best trained row does."""
    means = {name: _mean_recall(part) for name, part in {**rules, **results}.items()}
    rule, trained = (max(some, key=lambda name: means[name]) for some in (rules, results))
    said = "MORE than" if means[rule] > means[trained] else "no more than"
    return (
        f"{where}: {NAMES[rule]}, without training, finds {said} the best trained row: "
        f"{means[rule]:.4f} to {means[trained]:.4f} of {NAMES[trained].lstrip('+')}."
    )


def _mean_recall(part: Sequence[RunResult]) -> float:
    return float(np.nanmean(column(part, _MEASURES["R@10"])))


def _rows(
    sheet: Sheet[Study], method: str, part: Sequence[RunResult], where: Mapping[str, Any]
) -> None:
    names = [f"{split}/{name}@10" for split in ("test", "valid") for name in ("recall", "ndcg")]
    for name in (*names, "best_round", "seconds"):
        sheet.row(method, name, column(part, name), **where)
    unequal = [float(np.nanmedian(imbalances(part)))]
    sheet.row(method, "test/imbalance_median", unequal, **where)
    sheet.row(method, "test/recall@10_worst", worst(part), **where)


def _differences(results: Results) -> dict[str, list[float]]:
    """Recall@10 minus that of FedAvg of the same seed, by method."""
    values = {method: np.array(column(part, _MEASURES["R@10"])) for method, part in results.items()}
    return {NAMES[m]: (v - values[BASE]).tolist() for m, v in values.items() if m != BASE}


def verdict(where: str, found: Mapping[str, Mapping[str, Contrast]], results: Results) -> str:
    """Say who is better and worse than FedAvg after Holm, and where PPLR stands."""
    text = []
    for verdict in ("better", "worse"):
        those = {
            label: [NAMES[m].lstrip("+") for m, c in group.items() if c.verdict == verdict]
            for label, group in found.items()
        }
        said = [f"{', '.join(names)} in {label}" for label, names in those.items() if names]
        text.append(f"{verdict} than FedAvg: {'; '.join(said) or 'nobody'}")
    place = rank({m: column(part, _MEASURES["R@10"]) for m, part in results.items()}, "pplr")
    if place is not None:
        text.append(f"PPLR's R@10 is number {place.place} of {place.of}")
    return f"{where}: {'. '.join(text)}."
