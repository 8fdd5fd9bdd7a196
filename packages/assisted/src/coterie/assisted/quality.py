"""How good predictions are: what organisations measure, and what the server notes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coterie.assisted.learner import Learner
from coterie.assisted.messages import Progress
from coterie.assisted.prediction_messages import Held, Quality
from coterie.assisted.settings import Settings
from coterie.core.data.interactions.cells import Cells
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import Split
from coterie.core.metrics.rated_cells import (
    map_of_batches,
    precision_and_ndcg,
    rmse,
    rmse_of_batches,
    sign_accuracy,
)
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.replies import ListReplies
from coterie.core.tensors.stacked import Ragged

LENGTH = 10
"""k of MAP@k and NDCG@k."""


def quality(learner: Learner, cells: Cells, scores: Tensor, pooled: bool) -> Quality:
    """Measure scores at held-out cells.

    Args:
        learner: knows whether scores are ratings or logits, and which cells are relevant.
        cells: with the true ratings.
        scores: ``(n,)``.
        pooled: whether to send ratings and scores along.
    """
    relevant, found = cells.values > learner.relevant_above, scores.double()
    ap, gain = precision_and_ndcg(found, relevant, cells.columns, LENGTH, empty="zero")
    is_rating = learner.objective.is_rating
    return Quality(
        rmse=_double(rmse(found, cells.values) if is_rating else math.nan),
        accuracy=_double(math.nan if is_rating else sign_accuracy(found, relevant)),
        ap=ap.nanmean(),
        ndcg=gain.nanmean(),
        cells=torch.tensor(len(cells)),
        rows=(cells.columns.lengths > 0).sum(),
        held=Held(learner.data.domain.rows[cells.rows], cells.values, scores, relevant)
        if pooled
        else None,
    )


def _double(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


# What the server notes of the measurements that organisations send.

_FIELDS = {"rmse": "rmse", "accuracy": "accuracy", "map@10": "ap", "ndcg@10": "ndcg"}


def monitor_of(settings: Settings) -> Monitor:
    """What the best round is chosen by: RMSE of explicit feedback, MAP@10 of implicit."""
    if settings.data.feedback == "explicit":
        return Monitor("eval/rmse", lower_is_better=True)
    return Monitor("eval/map@10")


def note_progress(replies: ListReplies[Progress], journal: Journal) -> None:
    """Note what organisations chose in a round."""
    ups = list(replies.ups.values())
    journal.scalar("fed/clients", len(ups))
    if not ups:
        return
    sizes = torch.stack([up.cells for up in ups])
    losses = torch.stack([up.loss for up in ups])
    journal.scalar("fed/loss", _mean(losses, sizes))
    residuals = torch.stack([up.residual for up in ups])
    journal.scalar("mtal/residual_norm", _mean(residuals.square(), sizes).sqrt())
    etas = torch.stack([up.eta for up in ups])
    journal.scalar("mtal/eta", etas.mean())
    journal.per_client("fed/loss", replies.ids, losses)
    journal.per_client("mtal/eta", replies.ids, etas)
    journal.per_client("mtal/own_weight", replies.ids, torch.stack([u.weights[0] for u in ups]))
    given = torch.tensor([len(up.weights) for up in ups])  # a histogram of all w_kj
    weights = torch.cat([up.weights for up in ups])
    journal.per_client("mtal/weights", replies.ids.repeat_interleave(given), weights)


def note_quality(
    replies: ListReplies[Quality], journal: Journal, split: Split, settings: Settings
) -> None:
    """Note how good predictions are, of each organisation and of all.

    RMSE and accuracy are of all cells, whoever holds them. A ranking is of what one organisation
    holds of a row, and the mean is over all such rows; where evaluation is pooled it is of all
    that is held out of a row, and in the reading released averaged as the public code does.
    """
    where, ups = ("test" if split == "test" else "eval"), list(replies.ups.values())
    if not ups:
        return
    by_name = _by_name(ups)
    for name, value in measured(ups, settings).items():
        if not math.isnan(value):
            journal.scalar(f"{where}/{name}", value)
            journal.per_client(f"{where}/{name}", replies.ids, by_name[name])


def measured(ups: Sequence[Quality], settings: Settings) -> dict[str, float]:
    """Measure over all organisations, as `note_quality` tells; NaN where nothing is known.

    Args:
        ups: what each measured, at least one.
        settings: with the reading's choices resolved.
    """
    sizes = {name: torch.stack([getattr(up, name) for up in ups]) for name in ("cells", "rows")}
    found = {name: _over_all(name, values, sizes) for name, values in _by_name(ups).items()}
    if settings.evaluation == "pooled":
        found |= pooled([up.held for up in ups if up.held is not None], settings)
    return found


def _by_name(ups: Sequence[Quality]) -> dict[str, Tensor]:
    """What organisations measured, ``(K,)`` each."""
    return {
        name: torch.stack([getattr(up, field) for up in ups]) for name, field in _FIELDS.items()
    }


def pooled(held: Sequence[Held], settings: Settings) -> dict[str, float]:
    """Measure over all organisations what is of rows: rankings, and averages by batches of them.

    Args:
        held: what each sent.
        settings: with the reading's choices resolved.
    """
    numbers, row = torch.cat([each.rows for each in held]).unique(return_inverse=True)
    order = torch.argsort(row, stable=True)
    rows = Ragged.from_lengths(order, torch.bincount(row, minlength=len(numbers)))
    truth = torch.cat([each.ratings for each in held])[order]
    scores = torch.cat([each.scores for each in held]).double()[order]
    relevant = torch.cat([each.relevant for each in held])[order]
    k, batch = LENGTH, settings.train.batch_rows
    ap, gain = precision_and_ndcg(scores, relevant, rows, k, empty="zero")
    found = {"map@10": float(ap.nanmean()), "ndcg@10": float(gain.nanmean())}
    if settings.reading == "released":
        found["map@10"] = map_of_batches(scores, relevant, rows, k, batch)
        if settings.data.feedback == "explicit":
            found["rmse"] = rmse_of_batches(scores, truth, rows, batch)
    return found


def _over_all(name: str, values: Tensor, sizes: Mapping[str, Tensor]) -> float:
    """Mean over organisations of a measurement, ``(K,)``, each with its cells or its rows."""
    if name == "rmse":
        return math.sqrt(_mean(values.square(), sizes["cells"]))
    return float(_mean(values, sizes["cells" if name == "accuracy" else "rows"]))


def _mean(values: Tensor, sizes: Tensor) -> Tensor:
    """Mean of those values that there are, weighted by sizes, ``()``; NaN where there are none."""
    weights = torch.where(values.isnan(), 0.0, sizes.double())
    return (values.double().nan_to_num() * weights).sum() / weights.sum()
