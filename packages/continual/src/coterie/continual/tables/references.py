"""What a table is measured against: popularity, and matrix factorisation with all data at hand."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from coterie.continual.experiment import Experiment
from coterie.continual.settings import Settings
from coterie.continual.tables.runs import RunResult
from coterie.core.data.interactions.pairs import EpochBatches, RankingChunks
from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.local_training.optimizer_settings import OptimizerSettings
from coterie.core.methods.ranking.central import Central
from coterie.core.methods.reference.popularity import popularity
from coterie.core.metrics.ranking import ranking_metrics
from coterie.core.models.mf import MF
from coterie.core.tensors.device import devices
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged

Score = Callable[[int], Tensor]


@dataclass(frozen=True)
class CentralSettings:
    """Of the centralised matrix factorisation, chosen on validation of ML-100K for all data sets.

    Attributes:
        lr: of Adam.
        l2: of the rows in a batch.
        batch_size: triples in a batch.
        epochs: most epochs in a block.
        patience: epochs without a better validation NDCG before a block ends.
    """

    lr: float = 1e-2
    l2: float = 3e-3
    batch_size: int = 2048
    epochs: int = 60
    patience: int = 5


CENTRAL = CentralSettings()


def popularity_run(settings: Settings, path: Path) -> None:
    """Rank by the number of training interactions in all blocks up to the tested one."""
    experiment = Experiment(settings)

    def score(block: int) -> Tensor:
        n_items = experiment.stream.blocks[block].n_items
        seen = [popularity(data.train, n_items) for data in experiment.blocks[: block + 1]]
        count = torch.stack(seen).sum(0)
        return count.expand(experiment.blocks[block].ids.numel(), -1)

    _test(experiment, score).write(path)


def recent_popularity_run(settings: Settings, path: Path) -> None:
    """Rank by the number of training interactions in the tested block alone."""
    experiment = Experiment(settings)

    def score(block: int) -> Tensor:
        data = experiment.blocks[block]
        n_items = experiment.stream.blocks[block].n_items
        return popularity(data.train, n_items).expand(data.ids.numel(), -1)

    _test(experiment, score).write(path)


def central_run(settings: Settings, path: Path) -> None:
    """Train BPR-MF anew for every block on the training data of all blocks up to it."""
    experiment = Experiment(settings)

    def score(block: int) -> Tensor:
        model = _model(experiment, block, None)
        train = _joined(experiment.blocks[: block + 1], experiment.stream.blocks[block].n_users)
        return _fitted(experiment, block, model, *train)

    _test(experiment, score).write(path)


def central_stream_run(settings: Settings, path: Path) -> None:
    """Train BPR-MF on each block in turn, from where the block before left it, as FT does."""
    experiment = Experiment(settings)
    last: MF | None = None

    def score(block: int) -> Tensor:
        nonlocal last
        last = _model(experiment, block, last)
        data = experiment.blocks[block]
        return _fitted(experiment, block, last, data.ids, data.train)

    _test(experiment, score).write(path)


def _test(experiment: Experiment, score: Score) -> RunResult:
    """Test ``score(block) -> (C, n_items)`` on every block, under the rules of the federated."""
    result, top_k = RunResult(), experiment.settings.top_k
    for t, data in enumerate(experiment.blocks):
        scores = score(t)
        seen = data.train.mask(scores.shape[1]) | data.valid.mask(scores.shape[1])
        found = ranking_metrics(scores, data.test, top_k, seen)
        result.users[str(t)] = {
            "ids": data.ids.tolist(),
            "ndcg": found.ndcg.tolist(),
            "recall": found.recall.tolist(),
        }
        valid = ranking_metrics(scores, data.valid, top_k, data.train.mask(scores.shape[1]))
        result.metrics[f"valid/block{t}"] = float(valid.ndcg.nanmean())
        for name, values in (("ndcg", found.ndcg), ("recall", found.recall)):
            result.metrics[f"test/block{t}/{name}@{top_k}"] = float(values.nanmean())
    result.metrics |= experiment.with_averages(result.metrics)
    return result


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


def _joined(blocks: list[UserRows], n_users: int) -> tuple[Tensor, Ragged]:
    """Training items of all users over several blocks, each item once."""
    pairs = torch.cat(
        [torch.stack([data.ids[data.train.rows], data.train.values]) for data in blocks], dim=1
    )
    user, item = torch.unique(pairs, dim=1)
    return torch.arange(n_users), Ragged.from_pairs(user, item, n_users)


def _fitted(experiment: Experiment, block: int, model: MF, users: Tensor, train: Ragged) -> Tensor:
    """Fit the model, keep its best epoch on validation, score all items for the block's users."""
    settings, data = experiment.settings, experiment.blocks[block]
    key = Key.from_seed(settings.seed).fold("central draws", block)
    metric = f"eval/ndcg@{settings.top_k}"
    best = _KeepBest(metric)
    stopping = EarlyStopping(metric, patience=CENTRAL.patience, mode="max")
    trainer = _trainer([best, stopping], experiment.device)
    batches = EpochBatches(
        users,
        train,
        model.n_items,
        key,
        negatives=1,
        batch_size=CENTRAL.batch_size,
        objective="pairwise",
        epoch=lambda: trainer.current_epoch,
    )
    valid = RankingChunks(data.ids, data.train, data.valid, 1024)
    central = Central(model, OptimizerSettings("adam", lr=CENTRAL.lr), settings.top_k)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        trainer.fit(central, batches, valid)
    best.restore(central)
    with torch.no_grad():
        return model.item_scores(data.ids)


def _trainer(callbacks: list[lightning.Callback], device: torch.device) -> lightning.Trainer:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return lightning.Trainer(
        **devices(device),
        max_epochs=CENTRAL.epochs,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )


class _KeepBest(lightning.Callback):
    """Keep the parameters of the best epoch in memory."""

    def __init__(self, metric: str) -> None:
        self.metric, self.score = metric, -1.0
        self.state: dict[str, Any] | None = None

    def on_validation_epoch_end(self, trainer: lightning.Trainer, module: Any) -> None:
        """Compare with the best epoch so far."""
        score = float(trainer.callback_metrics.get(self.metric, torch.tensor(-1.0)))
        if score > self.score:
            self.score, self.state = score, deepcopy(module.state_dict())

    def restore(self, module: lightning.LightningModule) -> None:
        """Load the best epoch."""
        if self.state is not None:
            module.load_state_dict(self.state)
