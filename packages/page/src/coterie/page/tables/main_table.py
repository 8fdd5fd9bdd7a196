"""Table 1: accuracy of PAGE, the methods it is compared with, and trivial baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, at_best
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results
from coterie.page.published import accuracies as printed
from coterie.page.tables.layout import (
    THOUSAND,
    accuracies,
    add_accuracies,
    comparison_notes,
    four_panels,
    percent,
    plain,
    verdict_notes,
)
from coterie.page.tables.study import BOUNDS, DECOUPLED, GLOBAL, LOCAL, MAJORITY, OTHERS, OWN, Study

_MB = 1e6
_NOTES = (
    "Test accuracy of the round that is best on validation data (mean of the server's and the "
    "clients'), mean ± standard deviation over seeds, the paper's in brackets. global: the global "
    "model on the server's samples; local: each client's own model on its own samples, mean over "
    "clients; shared: the global model on each client's samples. last: after the last round.",
    "Steps are the gradient steps of all clients, MB what crossed in training, a client and round, "
    "CPU s the processor time of a round with its evaluation. In Ditto both models count, in "
    "FedALA the learning of its weights; a step of Fed-ROD trains two heads.",
    "The weights p of PAGE's rows are chosen on the server's labelled validation samples, which no "
    "other row's training sees; of those FedRECON has only its global head from them.",
)
_BESIDE = (
    "Not the paper's: + branch keeps a personal model v = a·u + (1 - a)·W that is never sent, a "
    "and u chosen on validation; PAGE (decoupled) has that branch, drift-corrected uploads (λ = "
    "{generality:g}) and p. The paper's rows are compared without these."
)


def main_table(study: Study) -> Report:
    """Reproduce Table 1 for the study's task."""
    names = [*BOUNDS, *study.federated, *study.beside]
    results = study.methods("Table 1", study.settings, names)
    trivial = study.rows_without("Table 1: majority class", study.references)
    federated = {method: results[method] for method in study.federated}
    sheet = Sheet(study, *study.setup, *_NOTES)
    for method, part in (trivial | results).items():
        add_accuracies(sheet, method, part, printed("table1", study.data, method))
        _add_line(sheet, method, part)
    sheet.notes += verdict_notes(federated) + comparison_notes(federated)
    if study.beside:
        sheet.notes += beside_notes(study, {n: p for n, p in results.items() if n not in BOUNDS})
    sheet.notes += rest_notes(results[OWN]) + certificate_notes(results[OWN])
    if "fedrecon" not in study.federated and study.network == "softmax":
        sheet.notes.append("FedRECON cannot run: a softmax regression has no body to share ('/').")
    what = f"{study.n_clients} clients, at most {study.settings.rounds} rounds"
    panels = four_panels({study.name_of(method): part for method, part in results.items()})
    return sheet.report("Table 1", what, panels, columns=2)


def beside_notes(study: Study, results: Results) -> list[str]:
    """Say where the reading decoupled stands among all rows, and what the game itself adds."""
    generality = study.variant(DECOUPLED).game.generality
    notes = [_BESIDE.format(generality=1.0 if generality is None else generality)]
    if DECOUPLED in results:
        notes += verdict_notes(results, DECOUPLED) + comparison_notes(results, DECOUPLED)
        notes += certificate_notes(results[DECOUPLED], study.name_of(DECOUPLED))
    return notes


def rest_notes(results: Sequence[RunResult]) -> list[str]:
    """Say in which rounds the games came to rest."""
    ended = [
        f"round {result.rounds}"
        if result.found.get("settled")
        else f"not after {result.rounds} rounds"
        for result in results
    ]
    return [f"PAGE's game came to rest, seed by seed: {', '.join(ended)}."]


def certificate_notes(results: Sequence[RunResult], of: str = "") -> list[str]:
    """Say what the certificates found before the runs and at their ends, of PAGE or ``of``."""
    said = [_of_certificates(one.found) for one in results if one.found.get("certificate")]
    what = f"Equilibrium of {of}" if of else "Equilibrium"
    return [f"{what}, seed by seed: {'; '.join(said)}."] if said else []


def _of_certificates(found: Mapping[str, Any]) -> str:
    before, after = found.get("certificate_before"), found["certificate"]
    verdict = "certified" if after["holds"] else "refused"
    if after["holds"] and after.get("screened"):
        verdict += " (of actions screened by the present stage)"
    epsilon = _epsilon(after)
    if before is not None:
        epsilon = f"{_epsilon(before)} before learning, {epsilon} after"
    share = _known(after["share_significant"], ".2%")
    return f"ε {epsilon}, {verdict}, {share} of the leaders beyond two standard errors"


def _epsilon(certificate: Mapping[str, Any]) -> str:
    share = _known(certificate["relative_epsilon"], ".2%")
    return f"{_known(certificate['epsilon'], '.4g')} ({share} of the payoff)"


def _known(value: float | None, form: str) -> str:
    return "unknown" if value is None else f"{value:{form}}"


def _add_line(sheet: Sheet[Study], method: str, results: Sequence[RunResult]) -> None:
    """Add a line for people."""
    study = sheet.study
    found = accuracies(results, printed("table1", study.data, method))
    line = sheet.line(method=study.name_of(method), **found)
    line["shared acc %"] = percent(at_best(results, f"test/{OTHERS}"))
    if method == MAJORITY:
        return
    line["best round"] = plain([float(result.best_round) for result in results])
    for label, name in (("last global %", GLOBAL), ("last local %", LOCAL)):
        line[label] = percent([result.last(f"test/{name}") for result in results])
    rounds = np.array([result.rounds for result in results])

    def total(name: str) -> NDArray[np.float64]:
        return np.array([result.total(f"cost/{name}") for result in results])

    line["steps a round"] = plain(total("local_steps") / rounds)
    line["steps (thousand)"] = cell(total("local_steps") / THOUSAND, digits=1)
    per_client = rounds * study.n_clients * study.settings.train.participation * _MB
    for way in ("up", "down"):
        line[f"{way} MB"] = cell(total(f"{way}_bytes") / per_client, digits=3)
    line["CPU s a round"] = cell(total("cpu_seconds") / rounds, digits=2)
