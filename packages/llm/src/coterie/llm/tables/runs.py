"""One run without Lightning's files and loggers, and how its clients' numbers are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from coterie.core.methods.ranking.bpr import CentralResult, train_lightgcn, train_mf
from coterie.core.metrics.clients import imbalance
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.following import follow
from coterie.core.tables.result import NAN, Make, RunResult, column, known
from coterie.core.tables.sheet import cell
from coterie.core.tensors.keys import Key
from coterie.llm.baselines import all_users, measure_popularity
from coterie.llm.client import Organisation
from coterie.llm.experiment import Experiment
from coterie.llm.quality import LENGTHS, MEASURES
from coterie.llm.settings.backbone import Whose
from coterie.llm.settings.run import Settings
from coterie.llm.title_rule import Measured, title_rule

COURSE = ("fed/loss", "eval/recall@10", "pplr/similarity", "pplr/difficulty", "pplr/warmup")
# Steps that measure, or make ready to measure; a round's traffic is without them.
_MEASURING = {"evaluate", "fold_in", "keep_best", "remember"}


def imbalances(results: Sequence[RunResult], split: str = "test") -> list[float]:
    """Imbalance degree of the clients' Recall@10 (section 4.4.2), one value a seed.

    It is infinite where only the worst client finds nothing, NaN where none finds anything.
    """
    found = (torch.tensor(r.clients[f"{split}/recall@10"], dtype=torch.float64) for r in results)
    return [imbalance(values) for values in found]


def evenness(results: Sequence[RunResult]) -> list[float]:
    """Recall@10 of the worst client over that of the best, 1 / (1 + imbalance), one a seed."""
    return [1.0 / (1.0 + unequal) for unequal in imbalances(results)]


def worst(results: Sequence[RunResult]) -> list[float]:
    """Recall@10 of the worst client, one value a seed; NaN without any."""
    return [min(known(result.clients["test/recall@10"]), default=NAN) for result in results]


def of_client(results: Sequence[RunResult], client: int) -> list[float]:
    """Recall@10 of a client on the test, one value a seed."""
    return [result.clients["test/recall@10"][client] for result in results]


def summary(results: Sequence[RunResult], split: str = "test") -> dict[str, str]:
    """Recall@10 and imbalance of the runs of one variant, for people."""
    recall = cell(column(results, f"{split}/recall@10"))
    return {f"{split} R@10": recall, **inequality(imbalances(results, split))}


def inequality(unequal: Sequence[float], paper: float | None = None) -> dict[str, str]:
    """Median imbalance of one value a seed, the paper's beside it, and how many are infinite.

    It is unknown of seeds in which no client finds anything, which are left out.

    Example:
        >>> inequality([0.5, float("inf"), 0.7, float("nan")], 4.5)
        {'imbalance': '0.70 (4.50)', 'infinite': '1 of 3'}
    """
    unequal = known(unequal)
    printed = f" ({paper:.2f})" if paper is not None and paper == paper else ""
    return {
        "imbalance": f"{np.median(unequal):.2f}{printed}" if unequal else f"unknown{printed}",
        "infinite": f"{int(np.isinf(unequal).sum())} of {len(unequal)}",
    }


def train(settings: Settings) -> RunResult:
    """Run a federation to its end; its clients are organisations, or users of organisations.

    Metrics are over all users, as ``test/recall@10``, and of the best round on validation, as
    ``valid/recall@10``; ``rounds``, ``best_round``, ``seconds``, ``trained`` (numbers that a client
    trains), ``up`` and ``down`` (bytes a client and round). Clients' numbers are K values each, NaN
    without a user to measure; the course is by the names of `COURSE`, NaN for clients that did not
    take part.
    """
    experiment = Experiment(settings)
    began = time.perf_counter()
    module = FederatedRun(experiment.federation())
    result = follow(module, _MEASURING, lambda result: _note_round(result, module, experiment))
    result.metrics["seconds"] = time.perf_counter() - began
    result.metrics["trained"] = _trained(module, settings)
    _note_end(result, module)
    for name, values in experiment.of_clients(module).items():
        result.clients[f"test/{name}"] = values.tolist()
    best = int(result.metrics["best_round"])
    if best:
        result.clients["valid/recall@10"] = result.course["eval/recall@10"][best - 1]
    return result


def _note_round(result: RunResult, module: FederatedRun, experiment: Experiment) -> None:
    for name in COURSE:
        if name not in module.journal.clients:
            continue
        found = experiment.means_of_clients(*module.journal.clients[name])
        result.course.setdefault(name, []).append(found.tolist())


def _note_end(result: RunResult, module: FederatedRun) -> None:
    """Note the overall metrics, the rounds and the traffic of a run that is finished."""
    best = module.results["test/best_round"]
    result.metrics |= {"rounds": module.round, "best_round": best}
    for name in MEASURES:
        result.metrics[f"test/{name}"] = module.results[f"test/{name}"]
        if best:
            result.metrics[f"valid/{name}"] = module.history[int(best) - 1][f"eval/{name}"]
    trainings = result.total("fed/clients")
    for way in ("up", "down"):
        size = result.total(f"cost/{way}_bytes")
        result.metrics[way] = size / trainings if trainings else NAN


def _trained(module: FederatedRun, settings: Settings) -> int:
    """Count the numbers that a client trains: an adapter; or public parts and its own vector."""
    state = module.server_state
    if hasattr(state, "rows"):
        client, halves = module.federation.client, getattr(module.federation.server, "halves", None)
        assert isinstance(client, Organisation)
        return client.adapter.size + (0 if halves is None else halves.size)
    if settings.method == "lightfr":  # bits, packed into bytes in the public part
        return settings.lightfr.bits * (state.public["codes"].shape[0] + 1)
    own = settings.fedmf.dim if settings.method == "fedmf" else settings.fedpergnn.dim
    return own + sum(v.numel() for v in state.public.values() if v.is_floating_point())


def popularity_run(settings: Settings) -> RunResult:
    """Rank by the number of interactions of all users: before validation, or before the test."""
    began, data = time.perf_counter(), Experiment(settings).data
    return _untrained(measure_popularity(data, "valid"), measure_popularity(data, "test"), began)


def title_run(counts: Whose, settings: Settings) -> RunResult:
    """Rank by `coterie.llm.title_rule.title_rule`, which validation chooses."""
    began, found = time.perf_counter(), title_rule(Experiment(settings).data, counts)
    return _untrained(found.valid, found.test, began)


def _untrained(valid: Measured, test: Measured, began: float) -> RunResult:
    """Average what was measured of every organisation, over all users and by organisation."""
    result = RunResult()
    for split, found in (("valid", valid), ("test", test)):
        for name in MEASURES:
            values = [part[name] for part in found]
            result.metrics[f"{split}/{name}"] = float(torch.cat(values).mean())
            result.clients[f"{split}/{name}"] = [float(part.mean()) for part in values]
    result.metrics["seconds"] = time.perf_counter() - began
    return result


def _of_users(name: str, settings: Settings) -> RunResult:
    """Train MF or LightGCN on all users; average them, over all and by organisation."""
    began, experiment = time.perf_counter(), Experiment(settings)
    data = experiment.data
    key = Key.from_seed(settings.seed).fold("reference")
    train: Callable[..., CentralResult] = train_mf if name == "mf" else train_lightgcn
    users, own = all_users(data), getattr(settings, name)
    found = train(own, users, data.n_items, LENGTHS, key, device=experiment.device)
    more = {"valid/recall@10": found.valid, "trained": found.parameters}
    result = RunResult(found.means() | more)
    for measure, values in (("recall", found.recall), ("ndcg", found.ndcg)):
        for place, k in enumerate(found.lengths):
            means = data.means(data.client_of[found.ids], values[:, place])
            result.clients[f"test/{measure}@{k}"] = means.tolist()
    result.metrics["seconds"] = time.perf_counter() - began
    return result


REFERENCES: Mapping[str, Make] = {
    "popularity": popularity_run,
    "titles": partial(title_run, "public"),
    "titles-all": partial(title_run, "everybody"),
    "mf": partial(_of_users, "mf"),
    "lightgcn": partial(_of_users, "lightgcn"),
}
