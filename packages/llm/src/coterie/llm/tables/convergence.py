"""Figure 1: clients and convergence of FedAvg on a language model, of FedMF, and in one place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.tables.curves import bars
from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.plots import Lines, Panel
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult
from coterie.core.tables.sheet import Sheet, cell
from coterie.core.tables.study import Results
from coterie.llm.tables.runs import of_client, summary
from coterie.llm.tables.study import Study

_NEARLY = 0.95
_SPEED_NOTE = (
    "Clients are numbered by size, the largest first. A curve is the best validation Recall@10 so "
    "far, mean over clients, as a share of the run's best; a run that has stopped stays where it "
    "was. Imbalance is the median over seeds."
)


def imbalance_figure(study: Study) -> Report:
    """Draw Figure 1 for the first backbone."""
    backbone, sheet = study.backbones[0], Sheet(study, _SPEED_NOTE)
    trained = study.methods("Figure 1", study.tuned(backbone), ("fedavg", "central"))
    runs: Results = {
        f"{backbone}, FedAvg": trained["fedavg"],
        f"{backbone}, central": trained["central"],
        "FedMF": study.rows_without("Figure 1: FedMF", ("fedmf",))["fedmf"],
    }
    clients = range(study.settings.data.clients)
    for name, part in runs.items():
        for client in clients:
            sheet.row(name, "test/recall@10", of_client(part, client), client=client)
        reached = [rounds_to(shares(run), _NEARLY) for run in part]
        line = sheet.line(method=name, **summary(part))
        line[f"rounds to {_NEARLY:.0%} of the best"] = cell(reached)
    groups = {
        f"{client + 1}": {name: of_client(part, client) for name, part in runs.items()}
        for client in clients
    }
    panels: list[Panel] = [bars("Recall@10 of a client", groups), _curves(runs)]
    return sheet.report("Figure 1", "clients and convergence", panels)


def shares(result: RunResult) -> list[float]:
    """Best validation Recall@10 so far over the best of the run, one value a round."""
    means = [np.nanmean(clients) for clients in result.course["eval/recall@10"]]
    best = np.maximum.accumulate(means)
    found: list[float] = (best / best[-1]).tolist() if best[-1] else [1.0] * len(means)
    return found


def rounds_to(course: Sequence[float], share: float) -> int:
    """Count the rounds until a share is reached.

    Example:
        >>> rounds_to([0.5, 0.96, 1.0], 0.95)
        2
    """
    return 1 + next(place for place, value in enumerate(course) if value >= share)


def _curves(runs: Results) -> Lines:
    courses = {name: [shares(result) for result in part] for name, part in runs.items()}
    longest = max(len(course) for part in courses.values() for course in part)
    lines: dict[str, list[Spread]] = {
        name: [spread([c[min(place, len(c) - 1)] for c in part]) for place in range(longest)]
        for name, part in courses.items()
    }
    return Lines(
        "round", range(1, longest + 1), lines, log=longest > 50, y_label="share of the best"
    )
