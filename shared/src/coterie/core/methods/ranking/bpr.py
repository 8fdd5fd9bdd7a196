"""MF and LightGCN: the learnt baselines of Table 1 with all data in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.data.interactions.pairs import RankingChunks
from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.methods.ranking.central import fit_pairwise
from coterie.core.methods.ranking.client import known_items, measure_split
from coterie.core.methods.settings.ranking import LightGCNSettings, MFSettings
from coterie.core.models.lightgcn import LightGCN
from coterie.core.models.mf import MF
from coterie.core.models.recommender import Recommender
from coterie.core.tensors.device import CPU
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
