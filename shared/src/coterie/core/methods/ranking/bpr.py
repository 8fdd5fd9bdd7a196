"""MF and LightGCN: the learnt baselines of Table 1 with all data in one place."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from coterie.core.data.interactions.pairs import EpochBatches, RankingChunks
from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.local_training.optimizer_settings import OptimizerSettings
from coterie.core.methods.ranking.central import Central
from coterie.core.methods.ranking.client import known_items, measure_split
from coterie.core.methods.settings.ranking import LightGCNSettings, MFSettings
from coterie.core.models.lightgcn import LightGCN
from coterie.core.models.mf import MF
from coterie.core.models.recommender import Recommender
from coterie.core.tensors.device import CPU, devices
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged

_CHUNK = 1024


@dataclass(frozen=True)
class CentralResult:
    """What a central baseline reached.

    Attributes:
        ids: ``(C,)`` int64, the users.
        lengths: the K values of k.
        recall: ``(C, K)`` Recall@k on the test; NaN for users who had nothing, or nothing to find.
        ndcg: ``(C, K)`` NDCG@k on the test.
        valid: Recall@k on validation, for the first k, of the epoch that was tested.
        epochs: epochs trained, those after the tested one included.
        parameters: number of trained parameters.
    """

    ids: Tensor
    lengths: tuple[int, ...]
    recall: Tensor
    ndcg: Tensor
    valid: float
    epochs: int = 0
    parameters: int = 0

    def means(self) -> dict[str, float]:
        """Means over users, named as the federated baselines name theirs: ``test/recall@10``."""
        return {
            f"test/{name}@{k}": float(getattr(self, name)[:, column].nanmean())
            for name in ("recall", "ndcg")
            for column, k in enumerate(self.lengths)
        }


def train_mf(
    settings: MFSettings,
    rows: UserRows,
    n_items: int,
    lengths: Sequence[int],
    key: Key,
    device: torch.device = CPU,
) -> CentralResult:
    """Train BPR-MF, fit the users' vectors to validation items as well, and test.

    Args:
        settings: of MF.
        rows: items of the users; those without targets are trained on and not measured.
        n_items: number of items.
        lengths: the k of Recall@k and NDCG@k; the first decides when to stop.
        key: of everything random.
        device: where to train.

    Raises:
        ValueError: there is nothing to train on.
    """
    start = key.fold("start")
    model = MF(rows.ids.numel(), n_items, settings.dim, start, l2=settings.l2)
    epochs, valid = _fit(model, settings, rows, lengths[0], key, device)
    if settings.fold_in:
        model.items.requires_grad_(False)
        trainer = _trainer(settings.fold_in, [], device)
        known, drawn = known_items(rows), key.fold("fold in")
        with _quiet():
            trainer.fit(
                Central(model, _adam(settings)),
                _batches(model, settings, rows, known, drawn, trainer),
            )
        model.items.requires_grad_(True)
    return _tested(model, rows, lengths, valid, epochs)


def train_lightgcn(
    settings: LightGCNSettings,
    rows: UserRows,
    n_items: int,
    lengths: Sequence[int],
    key: Key,
    device: torch.device = CPU,
) -> CentralResult:
    """Train LightGCN on the graph of train, and test it on that of train and validation.

    Arguments and errors as for `train_mf`.
    """
    model = LightGCN(
        rows.train, n_items, settings.dim, key.fold("start"), settings.layers, settings.l2
    )
    epochs, valid = _fit(model, settings, rows, lengths[0], key, device)
    model.link(known_items(rows))
    return _tested(model, rows, lengths, valid, epochs)


def _fit(
    model: Recommender,
    settings: MFSettings | LightGCNSettings,
    rows: UserRows,
    k: int,
    key: Key,
    device: torch.device,
) -> tuple[int, float]:
    """Fit, and restore the epoch of the best validation; give the epochs and its Recall@k."""
    metric = f"eval/recall@{k}"
    asked = rows.train.lengths > 0
    targets = Ragged.from_lengths(
        rows.valid.values[asked[rows.valid.rows]], torch.where(asked, rows.valid.lengths, 0)
    )
    best = _KeepBest(metric)
    callbacks: list[lightning.Callback] = [best]
    if targets.values.numel():  # without any, all epochs are run and the last one is kept
        callbacks.append(EarlyStopping(metric, patience=settings.patience, mode="max"))
    trainer = _trainer(settings.epochs, callbacks, device)
    users = torch.arange(rows.ids.numel())
    central = Central(model, _adam(settings), k)
    batches = _batches(model, settings, rows, rows.train, key.fold("batches"), trainer)
    with _quiet():
        trainer.fit(central, batches, RankingChunks(users, rows.train, targets, _CHUNK))
    best.restore(central)
    return trainer.current_epoch, best.score


def _batches(
    model: Recommender,
    settings: MFSettings | LightGCNSettings,
    rows: UserRows,
    positives: Ragged,
    key: Key,
    trainer: lightning.Trainer,
) -> EpochBatches:
    return EpochBatches(
        torch.arange(rows.ids.numel()),
        positives,
        model.n_items,
        key,
        negatives=1,
        batch_size=settings.batch_size,
        objective="pairwise",
        epoch=lambda: trainer.current_epoch,
    )


def _tested(
    model: Recommender, rows: UserRows, lengths: Sequence[int], valid: float, epochs: int
) -> CentralResult:
    with torch.no_grad():
        recall, ndcg = measure_split(model.item_scores, rows, "test", lengths)
    parameters = sum(value.numel() for value in model.parameters())
    return CentralResult(rows.ids, tuple(lengths), recall, ndcg, valid, epochs, parameters)


def _adam(settings: MFSettings | LightGCNSettings) -> OptimizerSettings:
    return OptimizerSettings("adam", lr=settings.lr)


def _trainer(
    epochs: int, callbacks: list[lightning.Callback], device: torch.device
) -> lightning.Trainer:
    with _quiet():
        return lightning.Trainer(
            **devices(device),
            max_epochs=epochs,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's notes on devices, loaders and the end of training off the terminal."""
    loggers = [logging.getLogger(f"lightning.{name}") for name in ("pytorch", "fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _KeepBest(lightning.Callback):
    """Keep the parameters of the best epoch in memory."""

    def __init__(self, metric: str) -> None:
        self.metric, self.score = metric, 0.0
        self.state: dict[str, Any] | None = None

    def on_validation_epoch_end(self, trainer: lightning.Trainer, module: Any) -> None:
        """Compare with the best epoch so far."""
        found = trainer.callback_metrics.get(self.metric)
        if found is not None and (self.state is None or float(found) > self.score):
            self.score, self.state = float(found), deepcopy(module.state_dict())

    def restore(self, module: lightning.LightningModule) -> None:
        """Load the best epoch, if there was one."""
        if self.state is not None:
            module.load_state_dict(self.state)
