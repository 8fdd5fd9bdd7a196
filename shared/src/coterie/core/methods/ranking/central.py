"""Training in one place by an ordinary `Trainer.fit`: the central and local-only baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adam, Optimizer

from coterie.core.data.interactions.negatives import EpochBatches, RankingChunks
from coterie.core.data.interactions.splits import UserRows
from coterie.core.methods.ranking.by_trainer import PairwiseSettings
from coterie.core.methods.ranking.client import known_items, measure_split
from coterie.core.methods.settings.ranking import LightGCNSettings, MFSettings
from coterie.core.metrics.as_torchmetrics import FullRanking
from coterie.core.metrics.clients import worst_decile
from coterie.core.models.lightgcn import LightGCN
from coterie.core.models.mf import MF
from coterie.core.models.recommender import RankingBatch, Recommender
from coterie.core.tensors.device import CPU, devices
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.core.terminal import quiet


class Trainable(Protocol):
    """What `Central` needs of an ``nn.Module``."""

    def loss(self, batch: Any) -> Tensor:
        """Mean loss of a training batch, ``()``."""

    def item_scores(self, user: Tensor) -> Tensor:
        """Scores of all items, ``(C,)`` -> ``(C, n_items)``; called in evaluation only."""


class Central(lightning.LightningModule):
    """Train a plain module on all users' data, or on one client's alone.

    Logs ``train/loss`` once an epoch; in validation ``eval/ndcg@k``, ``eval/recall@k``,
    ``eval/hr@k``, ``eval/mrr@k`` and ``eval/ndcg@k_worst10``, in a test the same under ``test/``;
    no key where no user has a target. The users' own values stay until the next evaluation in
    ``eval_ranking.per_client()`` and ``test_ranking.per_client()``, in the order of the batches.

    Args:
        model: an ``nn.Module`` with ``loss(batch)``; with ``item_scores(user)`` as well if there
            is anything to evaluate.
        optimizer: makes the optimizer of the parameters.
        k: length of the ranked list in evaluation.
    """

    def __init__(
        self, model: Trainable, optimizer: Callable[[Iterator[Parameter]], Optimizer], k: int = 20
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer = optimizer
        self.eval_ranking = FullRanking(k)
        self.test_ranking = FullRanking(k)

    def configure_optimizers(self) -> Optimizer:
        """Build the optimizer over all parameters."""
        return self.optimizer(self.parameters())

    def training_step(self, batch: Any) -> Tensor:
        """Loss of one batch."""
        loss = self.model.loss(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: RankingBatch) -> None:
        """Rank all items for a chunk of users."""
        self._rank(batch, self.eval_ranking)

    def test_step(self, batch: RankingBatch) -> None:
        """Rank all items for a chunk of users."""
        self._rank(batch, self.test_ranking)

    def on_validation_epoch_start(self) -> None:
        """Forget the users of the last validation."""
        self.eval_ranking.reset()

    def on_test_epoch_start(self) -> None:
        """Forget the users of the last test."""
        self.test_ranking.reset()

    def on_validation_epoch_end(self) -> None:
        """Log the means over users."""
        self._log(self.eval_ranking, "eval")

    def on_test_epoch_end(self) -> None:
        """Log the means over users."""
        self._log(self.test_ranking, "test")

    def _rank(self, batch: RankingBatch, metric: FullRanking) -> None:
        metric.update(self.model.item_scores(batch.user), batch.excluded, batch.targets)

    def _log(self, metric: FullRanking, prefix: str) -> None:
        if not metric.update_called:  # nobody has a target: there is nothing to log
            return
        values = {name: value.item() for name, value in metric.compute().items()}
        ndcg = f"ndcg@{metric.k}"
        values[f"{ndcg}_worst10"] = worst_decile(metric.per_client().ndcg)
        named = {f"{prefix}/{name}": value for name, value in values.items()}
        self.log_dict(named, prog_bar=prefix == "eval")


def fit_pairwise(
    model: Recommender,
    settings: PairwiseSettings,
    epochs: int,
    users: Tensor,
    positives: Ragged,
    key: Key,
    valid: RankingChunks | None = None,
    metric: str = "",
    device: torch.device = CPU,
) -> tuple[int, float]:
    """Fit by Adam on triples, one negative a positive, and keep the epoch of the best validation.

    Args:
        model: trained in place.
        settings: learning rate, size of a batch, patience.
        epochs: most of them; all are run where nobody is asked in validation, and the last is kept.
        users: ``(C,)`` int64, the user of every row.
        positives: C rows of items.
        key: of the draws.
        valid: users to rank items for.
        metric: by which the epoch is chosen, as ``ndcg@20``.
        device: where to compute.

    Returns:
        Epochs that were trained, and the best value of the metric.
    """
    name = f"eval/{metric}"
    best = _KeepBest(name)
    callbacks: list[lightning.Callback] = [best]
    if valid is not None and len(valid):
        callbacks.append(EarlyStopping(name, patience=settings.patience, mode="max"))
    with quiet():
        trainer = lightning.Trainer(
            **devices(device),
            max_epochs=epochs,
            num_sanity_val_steps=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
        )
        batches = EpochBatches(
            users,
            positives,
            model.n_items,
            key,
            negatives=1,
            batch_size=settings.batch_size,
            objective="pairwise",
            epoch=lambda: trainer.current_epoch,
        )
        k = int(metric.partition("@")[2] or 20)
        central = Central(model, partial(Adam, lr=settings.lr), k)
        trainer.fit(central, batches, valid)
    if best.state is not None:
        central.load_state_dict(best.state)
    return trainer.current_epoch, best.score


class _KeepBest(lightning.Callback):
    """Keep the parameters of the best epoch in memory."""

    def __init__(self, metric: str) -> None:
        self.metric, self.score = metric, 0.0
        self.state: dict[str, Any] | None = None

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        """Compare with the best epoch so far; at the end of its epoch the module has not logged."""
        found = trainer.callback_metrics.get(self.metric)
        if found is not None and (self.state is None or float(found) > self.score):
            self.score, self.state = float(found), deepcopy(module.state_dict())


# MF and LightGCN: the learnt baselines of Table 1 with all data in one place.

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
        users, known = torch.arange(rows.ids.numel()), known_items(rows)
        fit_pairwise(
            model, settings, settings.fold_in, users, known, key.fold("fold in"), device=device
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
    asked = rows.train.lengths > 0
    targets = Ragged.from_lengths(
        rows.valid.values[asked[rows.valid.rows]], torch.where(asked, rows.valid.lengths, 0)
    )
    users, drawn = torch.arange(rows.ids.numel()), key.fold("batches")
    valid = RankingChunks(users, rows.train, targets, _CHUNK)
    return fit_pairwise(
        model, settings, settings.epochs, users, rows.train, drawn, valid, f"recall@{k}", device
    )


def _tested(
    model: Recommender, rows: UserRows, lengths: Sequence[int], valid: float, epochs: int
) -> CentralResult:
    with torch.no_grad():
        recall, ndcg = measure_split(model.item_scores, rows, "test", lengths)
    parameters = sum(value.numel() for value in model.parameters())
    return CentralResult(rows.ids, tuple(lengths), recall, ndcg, valid, epochs, parameters)
