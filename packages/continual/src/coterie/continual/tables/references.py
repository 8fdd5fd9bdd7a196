"""What a table is measured against: popularity, and matrix factorisation with all data at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from coterie.continual.by_trainer import CENTRAL, joined
from coterie.continual.client import without
from coterie.continual.experiment import Experiment
from coterie.continual.settings import Settings
from coterie.core.data.interactions.negatives import RankingChunks
from coterie.core.methods.ranking.central import fit_pairwise
from coterie.core.methods.ranking.references import popularity
from coterie.core.metrics.ranking import ranking_metrics
from coterie.core.models.mf import MF
from coterie.core.tables.result import Make, RunResult
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

Score = Callable[[int], Tensor]


def popularity_run(settings: Settings) -> RunResult:
    """Rank by the number of training interactions in all blocks up to the tested one."""
    return _counted(settings, lambda block: range(block + 1))


def recent_popularity_run(settings: Settings) -> RunResult:
    """Rank by the number of training interactions in the tested block alone."""
    return _counted(settings, lambda block: range(block, block + 1))


def _counted(settings: Settings, seen: Callable[[int], Iterable[int]]) -> RunResult:
    """Rank by the number of training interactions in the blocks that are ``seen`` for one."""
    experiment = Experiment(settings)

    def score(block: int) -> Tensor:
        n_items = experiment.stream.blocks[block].n_items
        counts = [popularity(experiment.blocks[number].train, n_items) for number in seen(block)]
        return torch.stack(counts).sum(0).expand(len(experiment.blocks[block].ids), -1)

    return _test(experiment, score)


def central_run(settings: Settings) -> RunResult:
    """Train BPR-MF anew for every block on the training data of all blocks up to it."""
    experiment = Experiment(settings)

    def score(block: int) -> Tensor:
        model = _model(experiment, block, None)
        train = joined(experiment.blocks[: block + 1], experiment.stream.blocks[block].n_users)
        return _fitted(experiment, block, model, *train)

    return _test(experiment, score)


def central_stream_run(settings: Settings) -> RunResult:
    """Train BPR-MF on each block in turn, from where the block before left it, as FT does."""
    experiment = Experiment(settings)
    last: MF | None = None

    def score(block: int) -> Tensor:
        nonlocal last
        last = _model(experiment, block, last)
        data = experiment.blocks[block]
        return _fitted(experiment, block, last, data.ids, data.train)

    return _test(experiment, score)


REFERENCES: dict[str, Make] = {
    "popularity": popularity_run,
    "popularity-block": recent_popularity_run,
    "central": central_run,
    "central-stream": central_stream_run,
}


def _test(experiment: Experiment, score: Score) -> RunResult:
    """Test ``score(block) -> (C, n_items)`` on every block, under the rules of the federated."""
    result, top_k = RunResult(), experiment.settings.top_k
    for t, data in enumerate(experiment.blocks):
        scores = score(t)
        seen = data.train.mask(scores.shape[1]) | data.valid.mask(scores.shape[1])
        assert data.earlier is not None
        had = data.earlier.mask(scores.shape[1])
        valid = ranking_metrics(scores, data.valid, top_k, data.train.mask(scores.shape[1]))
        found = ranking_metrics(scores, data.test, top_k, seen)
        new = without(data.test, data.earlier, scores.shape[1])
        unseen = ranking_metrics(scores, new, top_k, seen | had)
        for name in ("ndcg", "recall"):
            result.metrics[f"valid/block{t}/{name}@{top_k}"] = _mean(getattr(valid, name))
            for protocol, measured in (("", found), ("_unseen", unseen)):
                values = getattr(measured, name)
                result.clients[f"block{t}/{name}{protocol}"] = values.tolist()
                result.metrics[f"test/block{t}/{name}@{top_k}{protocol}"] = _mean(values)
    result.metrics |= experiment.with_averages(result.metrics)
    return result


def _mean(values: Tensor) -> float:
    return float(values.nanmean())


def _model(experiment: Experiment, block: int, last: MF | None) -> MF:
    """Make a model for the users and items of a block; known rows are those of ``last``."""
    size, settings = experiment.stream.blocks[block], experiment.settings
    key = Key.from_seed(settings.seed).fold("central", block)
    model = MF(size.n_users, size.n_items, settings.model.dim, key, l2=CENTRAL.l2)
    if last is not None:
        with torch.no_grad():
            model.users.weight[: last.n_users] = last.users.weight
            model.items.weight[: last.n_items] = last.items.weight
    return model


def _fitted(experiment: Experiment, block: int, model: MF, users: Tensor, train: Ragged) -> Tensor:
    """Fit the model, keep its best epoch on validation, score all items for the block's users."""
    settings, data = experiment.settings, experiment.blocks[block]
    key = Key.from_seed(settings.seed).fold("central draws", block)
    valid = RankingChunks(data.ids, data.train, data.valid, 1024)
    metric = f"ndcg@{settings.top_k}"
    fit_pairwise(
        model, CENTRAL, CENTRAL.epochs, users, train, key, valid, metric, experiment.device
    )
    with torch.no_grad():
        return model.item_scores(data.ids)
