"""The measures of a run for people: which matter, which way is better, what they stand beside.

Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from coterie.core.looking.facts import RunFacts
from coterie.core.metrics.monitor import VALIDATION
from coterie.core.registry.keys import KEYS, PANELS, X_AXIS, Panel, documented

TEST = "test/"
_ROUNDS = ("best_round", "last_round")
_LOWER = ("loss", "rmse", "mae", "mse", "imbalance")
_HIGHER = ("ndcg", "recall", "hr", "mrr", "map", "auc", "accuracy", "precision")
_CAPITALS = re.compile(r"\b(ndcg|hr|mrr|map|auc|rmse|mae|mse)(?=\b|@)")
_WHEN = {"test": "", "eval": "on validation", "valid": "on validation", "last": "in the last round"}


def tail(name: str) -> str:
    """What is measured, without when and of what.

    Example:
        >>> tail("test/popularity/recall@10")
        'recall@10'
    """
    return name.rpartition("/")[2]


def in_words(name: str) -> str:
    """Name a measure for people; those of the test are not said to be.

    Example:
        >>> in_words("test/average/ndcg@20_unseen"), in_words("test/server_accuracy")
        ('NDCG@20 unseen, mean over blocks', 'server accuracy')
        >>> in_words("test/popularity/recall@10"), in_words("eval/rmse")
        ('recall@10, popularity', 'RMSE, on validation')
    """
    first, *middle = name.split("/")[:-1] or [""]
    of_blocks = {"average": "mean over blocks"}
    middle = [of_blocks.get(one, re.sub(r"^block(\d+)$", r"block \1", one)) for one in middle]
    words = [tail(name).replace("_", " "), *middle, _WHEN.get(first, first)]
    return _CAPITALS.sub(lambda found: found[0].upper(), ", ".join(filter(None, words)))


def higher_is_better(name: str, run: RunFacts) -> bool | None:
    """Which way a measure is better: as rounds are chosen by it, as it is documented, by its word.

    Returns:
        None where nobody says.
    """
    measure = tail(name)
    monitor = run.about.get("monitor") or {}
    if monitor and tail(str(monitor.get("key"))) == measure:
        return not monitor.get("lower_is_better")
    known = documented(VALIDATION + measure, (*run.paper.keys, *KEYS))
    if known is not None and known.summary is not None:
        return known.summary == "max"
    words = measure.replace("@", "_").split("_")
    if any(word in _LOWER for word in words):
        return False
    return True if any(word in _HIGHER for word in words) else None


def headline(run: RunFacts) -> list[str]:
    """The tests that a run is judged by, the most important first.

    Those are what the paper prints, then averages over blocks, then what has no blocks; neither
    baselines nor numbers of rounds. The measure by which rounds are chosen leads.
    """
    names = [name for name in run.metrics if name.startswith(TEST) and tail(name) not in _ROUNDS]
    averages = [name for name in names if name.startswith(f"{TEST}average/")]
    whole = averages or [name for name in names if name.count("/") == 1]
    chosen = [*(name for name in run.reference if name in names), *whole]
    by = tail(run.monitor or "")
    return sorted(dict.fromkeys(chosen), key=lambda name: tail(name) != by)


@dataclass(frozen=True)
class Result:
    """A measure of a run, beside what the paper and simple rules have.

    Attributes:
        name: of the measure.
        ours: its value.
        paper: the paper's; None where it prints none.
        baselines: value by the name of a rule that was measured beside.
        higher: whether more is better; None where nobody says.
    """

    name: str
    ours: float
    paper: float | None
    baselines: dict[str, float]
    higher: bool | None


def results(run: RunFacts) -> list[Result]:
    """The headline numbers of a finished run."""
    metrics = run.metrics
    found = []
    for name in headline(run):
        beside = {
            middle: value
            for other, value in metrics.items()
            if (middle := _rule(other)) and f"{TEST}{tail(other)}" == name
        }
        higher = higher_is_better(name, run)
        found.append(Result(name, metrics[name], run.reference.get(name), beside, higher))
    return found


def _rule(name: str) -> str | None:
    """The baseline that a name is of: ``popularity`` for ``test/popularity/recall@10``."""
    parts = name.split("/")
    is_one = len(parts) == 3 and parts[0] == "test" and not parts[1].startswith("block")
    return parts[1] if is_one and parts[1] != "average" else None


def curves(run: RunFacts) -> list[Panel]:
    """Charts of a run with the keys that it has, the measure rounds are chosen by first."""
    there = {
        name for name, values in run.history.items() if any(value == value for value in values)
    }
    charts = [
        replace(panel, keys=tuple(keys), names=tuple(map(panel.name_of, keys)))
        for panel in (*run.paper.panels, *PANELS)
        if panel.x == X_AXIS and (keys := _matching(panel.keys, there))
    ]
    monitor = run.monitor
    if monitor is not None and monitor in there and not any(monitor in one.keys for one in charts):
        charts.insert(0, Panel(in_words(monitor), (monitor,)))
    return sorted(charts, key=lambda chart: monitor not in chart.keys)


def rounds_of_tests(run: RunFacts) -> list[int]:
    """The rounds, over all blocks, whose models were tested; none where it is a block's start."""
    blocks = run.history.get("block", [])
    found = []
    for name, best in run.metrics.items():
        parts = name.split("/")
        if parts[0] != "test" or parts[-1] != "best_round" or not best > 0:
            continue
        block = int(parts[1].removeprefix("block")) if len(parts) == 3 else 0
        found.append(sum(one < block for one in blocks) + int(best))
    return sorted(found)


def _matching(keys: Sequence[str], there: Iterable[str]) -> list[str]:
    names = sorted(there)
    return list(dict.fromkeys(name for key in keys for name in names if fnmatchcase(name, key)))
