"""One run without Lightning's files and loggers, and what a table needs of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.metrics.clients import imbalance
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.result import Result
from coterie.llm.data.client_data import FederatedData
from coterie.llm.experiment import Experiment
from coterie.llm.quality import MEASURES
from coterie.llm.settings.run import Settings

COURSE = (
    "fed/loss",
    "eval/recall@10",
    "pplr/similarity",
    "pplr/difficulty",
    "pplr/warmup",
)
# Steps that measure, or make ready to measure; a round's traffic is without them.
_MEASURING = {"evaluate", "fold_in", "keep_best", "remember"}


@dataclass
class RunResult(Result):
    """What a table needs of a run.

    Attributes:
        metrics: over all users, as ``test/recall@10``, and of the best round on validation
            ``valid/recall@10``; ``rounds``, ``best_round``, ``seconds``, ``trained`` (numbers that
            a client trains), ``up`` and ``down`` (bytes a client and round); some may be absent.
        clients: the same metrics of every client, K values each; NaN without a user to measure.
        course: what every client measured in every round, by the names of `COURSE`, rounds x K;
            NaN for clients that did not take part.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    clients: dict[str, list[float]] = field(default_factory=dict)
    course: dict[str, list[list[float]]] = field(default_factory=dict)

    def imbalance(self, split: str = "test") -> float:
        """Imbalance degree of the clients' Recall@10 (section 4.4.2)."""
        values = self.clients[f"{split}/recall@10"]
        return imbalance(torch.tensor(values, dtype=torch.float64))

    def worst(self, metric: str = "test/recall@10") -> float:
        """Value of the worst client; NaN without any."""
        return min((v for v in self.clients[metric] if v == v), default=float("nan"))

    def evenness(self) -> float:
        """Recall@10 of the worst client over that of the best, 1 / (1 + imbalance)."""
        return 1.0 / (1.0 + self.imbalance())


def train_run(settings: Settings, path: Path) -> None:
    """Make a run and write its `RunResult`."""
    train(settings).write(path)


def train(settings: Settings) -> RunResult:
    """Run a federation to its end; its clients are organisations, or users of organisations."""
    experiment = Experiment(settings)
    began = time.perf_counter()
    module = FederatedRun(experiment.federation())
    result = RunResult()
    while not module.finished:
        module.advance()
        _note_round(result, module, experiment)
    result.metrics["seconds"] = time.perf_counter() - began
    result.metrics["trained"] = _trained(module, settings)
    _note_end(result, module)
    for name, values in experiment.of_clients(module).items():
        result.clients[f"test/{name}"] = values.tolist()
    best = int(result.metrics["best_round"])
    if best:
        result.clients["valid/recall@10"] = result.course["eval/recall@10"][best - 1]
    return result


def organisation_means(data: FederatedData, users: Tensor, values: Tensor) -> list[float]:
    """Average the users of each of K organisations; NaN where none has a value.

    Args:
        data: tells whose user is whose.
        users: ``(n,)`` user numbers.
        values: ``(n,)`` of theirs; NaN for a user who is not measured, such as a public one.
    """
    known = ~values.isnan()
    client, values = data.client_of[users[known]], values[known].double()
    total = torch.zeros(len(data.clients), dtype=torch.float64)
    count = torch.zeros_like(total).index_add_(0, client, torch.ones_like(values))
    return (total.index_add_(0, client, values) / count).tolist()


def _note_round(result: RunResult, module: FederatedRun, experiment: Experiment) -> None:
    for name in COURSE:
        if name not in module.journal.clients:
            continue
        ids, values = module.journal.clients[name]
        if experiment.of_users:
            placed = organisation_means(experiment.data, ids, values)
        else:
            placed = _placed(ids, values, len(experiment.data.clients))
        result.course.setdefault(name, []).append(placed)


def _note_end(result: RunResult, module: FederatedRun) -> None:
    """Note the overall metrics, the rounds and the traffic of a run that is finished."""
    best = module.results["test/best_round"]
    result.metrics |= {"rounds": module.round, "best_round": best}
    for name in MEASURES:
        result.metrics[f"test/{name}"] = module.results[f"test/{name}"]
        if best:
            result.metrics[f"valid/{name}"] = module.history[int(best) - 1][f"eval/{name}"]
    trainings = sum(scalars["fed/clients"] for scalars in module.history)
    for way in ("up", "down"):
        size = sum(
            row["bytes"]
            for row in module.ledger.rows()
            if row["direction"] == way and row["step"] not in _MEASURING
        )
        result.metrics[way] = size / trainings if trainings else float("nan")


def _trained(module: FederatedRun, settings: Settings) -> int:
    """Count the numbers that a client trains: an adapter; or public parts and its own vector."""
    state = module.server_state
    if hasattr(state, "rows"):
        return int(state.rows.shape[1])
    if settings.method == "lightfr":  # bits, packed into bytes in the public part
        return settings.lightfr.bits * (state.public["codes"].shape[0] + 1)
    own = settings.fedmf.dim if settings.method == "fedmf" else settings.fedpergnn.dim
    return own + sum(v.numel() for v in state.public.values() if v.is_floating_point())


def _placed(ids: Tensor, values: Tensor, n_clients: int) -> list[float]:
    found = torch.full((n_clients,), torch.nan, dtype=torch.float64)
    found[ids] = values.double()
    return found.tolist()
