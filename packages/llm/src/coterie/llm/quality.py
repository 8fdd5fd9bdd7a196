"""Quality of recommendations, user by user (section 4.1.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from coterie.core.metrics.ranking_report import measure_rows
from coterie.llm.data.examples import Queries

LENGTHS = (10, 20)  # k
AT_ONCE = 256
"""Users whose scores are made at once: those of all of them may be too many."""
MEASURES = tuple(f"{name}@{k}" for name in ("recall", "ndcg") for k in LENGTHS)


def measure_users(score: Callable[[Queries], Tensor], queries: Queries) -> dict[str, Tensor]:
    """Measure n users as `measure_rows` does, some at a time, by their scores ``(m, n_items)``.

    Returns:
        Recall and NDCG by name, as "recall@10", ``(n,)`` float64 each.
    """
    found = [torch.empty(2, 0, len(LENGTHS), dtype=torch.float64)]
    for part in blocks(queries):
        found.append(measure_rows(_scorer(score, part), part.seen, part.targets, LENGTHS))
    return _by_name(torch.cat(found, dim=1))


def measure_each(
    score: Callable[[Queries], Tensor], biases: Sequence[Tensor], queries: Queries
) -> list[dict[str, Tensor]]:
    """Do what `measure_users` does with each of some biases ``(n_items,)`` added to the scores.

    The scores are made once for all of them.
    """
    found: list[dict[str, Tensor]] = [{} for _ in biases]
    for block in blocks(queries) if len(queries) else ():
        scores = score(block)
        for number, bias in enumerate(biases):
            part, known = measure_scores(scores + bias.to(scores), block), found[number]
            found[number] = {n: torch.cat([known[n], part[n]]) for n in part} if known else part
    empty = torch.empty(0, dtype=torch.float64)
    return [one or dict.fromkeys(MEASURES, empty) for one in found]


def measure_scores(scores: Tensor, queries: Queries) -> dict[str, Tensor]:
    """Do what `measure_users` does by scores that are known, ``(n, n_items)``."""
    found = measure_rows(lambda rows: scores[rows], queries.seen, queries.targets, LENGTHS)
    return _by_name(found)


def blocks(queries: Queries) -> Iterator[Queries]:
    """Give the users some at a time."""
    return map(queries.take, torch.arange(len(queries)).split(AT_ONCE))


def _by_name(measured: Tensor) -> dict[str, Tensor]:
    return dict(zip(MEASURES, measured.movedim(1, 2).flatten(0, 1), strict=True))


def _scorer(score: Callable[[Queries], Tensor], part: Queries) -> Callable[[Tensor], Tensor]:
    return lambda rows: score(part.take(rows))
