"""How F³CRec compares with another method: paired over seeds, and over users."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.continual.tables.runs import later_blocks
from coterie.continual.tables.study import NAMES, averages
from coterie.core.tables.contrast import FEWEST, Contrast, contrasts
from coterie.core.tables.paired import Comparison, compare, p_text
from coterie.core.tables.plots import Differences
from coterie.core.tables.result import RunResult
from coterie.core.tables.study import Results

OWN = "f3crec"


def over_others(results: Results, metric: str) -> dict[str, Contrast]:
    """Compare F³CRec with each of the other methods on the test; the metric as "ndcg@20"."""
    return contrasts({name: averages(runs, metric) for name, runs in results.items()}, OWN)


def over_users(results: Results, other: str, metric: str) -> Comparison:
    """Compare F³CRec with another method over (block, user), by the user's mean over seeds."""
    return compare(user_means(results[OWN], metric), user_means(results[other], metric))


def in_short(found: Contrast) -> str:
    """Write a difference, its p and the verdict."""
    return f"{found.found.difference:+.4f}, p {p_text(found.p)}: {found.verdict}"


def sentence(found: Contrast, metric: str, users: Comparison | None = None) -> str:
    """Say in full how F³CRec compares; ``users`` from `over_users`, where they were tested."""
    s = found.found
    over = f", over {users.n} users p {p_text(users.p)}" if users else ""
    return (
        f"{metric}: {NAMES[OWN]} - {NAMES[found.other]} = {s.difference:+.4f} "
        f"(95 % interval {s.low:+.4f} to {s.high:+.4f}), paired t-test over {s.n} seeds "
        f"p {p_text(s.p)} (Holm {p_text(found.p)}){over}: {found.verdict}."
    )


def paired(label: str, first: Sequence[float], second: Sequence[float]) -> str:
    """Say how two groups of runs differ, without an adjustment."""
    found = compare(first, second)
    return f"{label} {found.difference:+.4f}, paired over seeds p = {found.p:.3g}."


def differences(series: Mapping[str, Mapping[str, Contrast]], metric: str) -> Differences:
    """Draw what F³CRec has over each method, by its printed name; one colour a series."""
    named = {
        label: {NAMES[method]: contrast.found for method, contrast in found.items()}
        for label, found in series.items()
    }
    return Differences(f"F³CRec minus it, {metric}", named)


def user_means(results: Sequence[RunResult], metric: str) -> NDArray[np.float64]:
    """Mean over seeds for every user of every block after the first, NaN without a test item."""
    name, blocks = re.sub(r"@\d+", "", metric), later_blocks(results[0])
    seeds = [np.concatenate([r.clients[f"{block}/{name}"] for block in blocks]) for r in results]
    # A user has a test item in all seeds or, with random splits too, in none.
    return np.mean(seeds, axis=0)


def best_of(results: Results, metric: str) -> str:
    """Name the method with the highest mean."""
    return max(results, key=lambda name: np.mean(averages(results[name], metric)))


def noise_note(found: Mapping[str, Contrast], metric: str) -> str:
    """Name the methods from which F³CRec cannot be told apart."""
    if any(c.verdict == "not tested" for c in found.values()):
        return f"{metric}: fewer than {FEWEST} seeds tell no difference from noise."
    within = [NAMES[name] for name, c in found.items() if c.verdict == "within noise"]
    return f"{metric}: within noise of F³CRec: {', '.join(within) or 'none'}."
