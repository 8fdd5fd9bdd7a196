"""How PPLR compares with another method: paired over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from coterie.core.tables.contrast import Contrast, contrasts
from coterie.core.tables.result import RunResult, column
from coterie.core.tables.study import Results
from coterie.llm.tables.runs import evenness, imbalances, worst
from coterie.llm.tables.study import NAMES

OWN = "pplr"
Found = Mapping[str, Mapping[str, Contrast]]
"""Measure -> other method -> PPLR minus it."""
_EVERY_CLIENT = "R@10 of each client"


def over_others(results: Results, others: Sequence[str]) -> Found:
    """Compare PPLR with other methods in Recall@10, NDCG@10, imbalance and the worst client.

    The imbalance is infinite where the worst client finds nothing. If that happens in any run, its
    monotone image worst / best = 1 / (1 + imbalance), which is always finite, is tested instead.
    """
    runs = {name: results[name] for name in (OWN, *others)}
    unequal = {name: imbalances(part) for name, part in runs.items()}
    inequality = "imbalance"
    if not np.isfinite(list(unequal.values())).all():
        inequality = "worst / best client (imbalance is not finite)"
        unequal = {name: evenness(part) for name, part in runs.items()}
    values = {
        "R@10": {name: column(part, "test/recall@10") for name, part in runs.items()},
        "N@10": {name: column(part, "test/ndcg@10") for name, part in runs.items()},
        inequality: unequal,
        "R@10 of the worst client": {name: worst(part) for name, part in runs.items()},
        _EVERY_CLIENT: {name: _every_client(part) for name, part in runs.items()},
    }
    return {
        measure: contrasts(group, OWN, higher=measure != "imbalance")
        for measure, group in values.items()
    }


def comparison_notes(where: str, results: Results, others: Sequence[str]) -> list[str]:
    """Say plainly where PPLR is not better, then write out the comparisons, a line a measure."""
    found, notes = over_others(results, others), []
    for measure, group in found.items():
        printed = [replace(c, other=_plain(c.other)) for c in group.values()]
        said = [f"{c.text()}, {_verdict(c)}" for c in printed]
        pairs = "clients and seeds (not independent)" if measure == _EVERY_CLIENT else "seeds"
        n = next(iter(group.values())).found.n
        notes.append(
            f"{where}, {measure}, PPLR minus: {'; '.join(said)}. "
            f"Paired t-test over {n} {pairs}, 95 % interval."
        )
    return [verdict_note(where, found), *notes]


def verdict_note(where: str, found: Found) -> str:
    """Say plainly where PPLR is not better."""
    lost: dict[str, list[str]] = {}
    for measure, group in found.items():
        for contrast in group.values():
            if contrast.verdict != "better":
                lost.setdefault(contrast.other, []).append(measure)
    if not lost:
        return f"{where}: PPLR is better in everything tested."
    text = "; ".join(f"than {_plain(name)} in {', '.join(what)}" for name, what in lost.items())
    return f"{where}: PPLR is NOT better {text}."


def _every_client(results: Sequence[RunResult]) -> list[float]:
    return [value for result in results for value in result.clients["test/recall@10"]]


def _verdict(found: Contrast) -> str:
    return found.verdict if found.verdict in ("better", "worse") else "not better, within noise"


def _plain(method: str) -> str:
    return NAMES[method].lstrip("+")
