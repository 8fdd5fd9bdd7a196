"""What the server notes of the measurements that organisations send."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.assisted.messages import Progress, Quality
from coterie.assisted.settings.run import Settings
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import Split
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.replies import ListReplies


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


def note_quality(
    replies: ListReplies[Quality], journal: Journal, split: Split, pooled: bool
) -> None:
    """Note how good predictions are, of each organisation and of all.

    RMSE and accuracy are of all cells, whoever holds them. A ranking is of what one organisation
    holds of a row, and the mean is over all such rows; or, pooled, of all that is held out of it.
    """
    where, ups = ("test" if split == "test" else "eval"), list(replies.ups.values())
    if not ups:
        return
    cells = torch.stack([up.cells for up in ups])
    rows = torch.stack([up.rows for up in ups])
    squares = torch.stack([up.rmse for up in ups]).square()
    means = {
        "rmse": _mean(squares, cells).sqrt(),
        "accuracy": _mean(torch.stack([up.accuracy for up in ups]), cells),
        "map@10": _mean(torch.stack([up.ap for up in ups]), rows),
        "ndcg@10": _mean(torch.stack([up.ndcg for up in ups]), rows),
    }
    for name, value in means.items():
        if not bool(value.isnan()):
            journal.scalar(f"{where}/{name}", value)
    for name, field in {"rmse": "rmse", "map@10": "ap", "ndcg@10": "ndcg"}.items():
        values = torch.stack([getattr(up, field) for up in ups])
        if not bool(values.isnan().all()):
            journal.per_client(f"{where}/{name}", replies.ids, values)


def _mean(values: Tensor, sizes: Tensor) -> Tensor:
    """Mean of those values that there are, weighted by sizes, ``()``; NaN where there are none."""
    weights = torch.where(values.isnan(), 0.0, sizes.double())
    return (values.double().nan_to_num() * weights).sum() / weights.sum()
