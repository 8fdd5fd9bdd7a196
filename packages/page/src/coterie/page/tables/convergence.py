"""Table 2: how soon each method reaches FedAvg's final value, and when it stops increasing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.tables.report import Report
from coterie.core.tables.result import NAN, RunResult, known
from coterie.core.tables.sheet import Line, Sheet, cell
from coterie.page.published import printed
from coterie.page.tables.layout import THOUSAND, plain
from coterie.page.tables.study import CHOSEN_BY, DECOUPLED, GLOBAL, LOCAL, OWN, PERSONALISED, Study

COLUMNS = {"global": f"eval/{GLOBAL}", "local": f"eval/{LOCAL}"}
STILL = 0.001
_REFERENCE = "fedavg"
_WIDEST, _SHARE = 10, 10


@dataclass(frozen=True)
class Reach:
    """When a curve first comes to a value: the round, and all local steps until then; or NaN."""

    round: float
    steps: float


NEVER = Reach(NAN, NAN)


def convergence_table(study: Study) -> Report:
    """Reproduce Table 2 for the study's task; everything is on validation data."""
    results = study.methods("Table 2", study.settings, [*study.federated, *study.beside])
    fedavg = results[_REFERENCE]
    widths = [window(result) for result in fedavg]
    sheet = Sheet(study, *_notes(study, widths))
    for method, part in results.items():
        line = sheet.line(method=study.name_of(method))
        for column, metric in COLUMNS.items():
            found = [
                reach(run, metric, final(one, metric, width), width)
                for run, one, width in zip(part, fedavg, widths, strict=True)
            ]
            _add_reach(sheet, line, method, column, found)
        stops = [stop(run, method, w) for run, w in zip(part, widths, strict=True)]
        paper = printed("table2", study.data, method)
        sheet.row(method, "stops_increasing", known(stops), paper)
        line["stops increasing in round"] = plain(stops)
        line["paper's round"] = paper
    return sheet.report("Table 2", "speed of convergence")


def window(reference: RunResult) -> int:
    """Evaluations that a smoothed value averages: a tenth of all, at least 1, at most 10."""
    return max(1, min(_WIDEST, len(reference.measured) // _SHARE))


def smoothed(result: RunResult, metric: str, width: int) -> tuple[list[int], list[float]]:
    """Trailing means of an accuracy over so many evaluations: rounds, and the mean at each."""
    curve = result.curve(metric)
    rounds = [number for number, value in enumerate(curve, 1) if value == value]
    if len(rounds) < width:
        return [], []
    values = np.array([curve[number - 1] for number in rounds])
    sums = np.concatenate([[0.0], values.cumsum()])
    return rounds[width - 1 :], ((sums[width:] - sums[:-width]) / width).tolist()


def final(result: RunResult, metric: str, width: int) -> float:
    """The last smoothed value; NaN without any."""
    return next(reversed(smoothed(result, metric, width)[1]), NAN)


def reach(result: RunResult, metric: str, target: float, width: int) -> Reach:
    """The first round whose accuracy, `smoothed` by a width, is the target or more."""
    # Sums of one curve in different places differ in the last digits.
    rounds, values = smoothed(result, metric, width)
    for number, value in zip(rounds, values, strict=True):
        if value >= target - 1e-12:
            return Reach(number, result.cumulative("cost/local_steps")[number - 1])
    return NEVER


def stop(result: RunResult, method: str, width: int) -> float:
    """The round from which an accuracy no longer grows by more than `STILL`.

    It is the first whose smoothed accuracy lies within that of the highest: of the global model, of
    the clients' own for personalised methods, of their mean for PAGE, whose game may come to rest
    before, in its last round.
    """
    if method in (OWN, DECOUPLED) and result.found.get("settled"):
        return float(result.rounds)
    metric = COLUMNS["local"] if method in PERSONALISED else COLUMNS["global"]
    metric = CHOSEN_BY if method in (OWN, DECOUPLED) else metric
    values = smoothed(result, metric, width)[1]
    return reach(result, metric, max(values, default=NAN) - STILL, width).round


def _add_reach(
    sheet: Sheet[Study], line: Line, method: str, column: str, found: Sequence[Reach]
) -> None:
    rounds = known([one.round for one in found])
    steps = known([one.steps for one in found])
    for name, values in (("round", rounds), ("local_steps", steps)):
        sheet.row(method, f"{name}_to_fedavg", values, column=column, reached=len(rounds))
    line[f"{column}: round"] = plain(rounds)
    line[f"{column}: steps (thousand)"] = cell([one / THOUSAND for one in steps], digits=1)
    line[f"{column}: reached"] = f"{len(rounds)} of {len(found)}"


def _notes(study: Study, widths: Sequence[int]) -> list[str]:
    width = " or ".join(map(str, sorted(set(widths))))
    rest = [
        *study.setup,
        "round and steps: the first evaluated round in which a method's validation accuracy, mean "
        f"over the last {width} evaluations, is FedAvg's at its end (the same mean, the same seed) "
        "or more, and the local steps of all clients until then; mean ± standard deviation over "
        "the seeds that reach it. global: the server's samples; local: the clients' own models.",
        "stops increasing: the first round whose smoothed validation accuracy lies within "
        f"{100 * STILL:g} points of the run's highest; of the global model, for personalised "
        "methods of the local ones, for PAGE of their mean or the round in which the game came to "
        "rest. The paper does not say how it measures this.",
    ]
    every = study.settings.train.evaluate_every
    if every > 1:
        last = study.settings.rounds
        rest.append(f"Only every {every}th round, and round {last}, were evaluated.")
    return rest
