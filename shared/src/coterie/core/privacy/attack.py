"""The measured attack: how well one upload tells a user's positive items (F³CRec, §5.6).

Each scorer maps one client's change of the item table to a score per item, high = positive. None
uses anything that the server does not have: the change, and the public table it was computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.figures import draw_files
from coterie.core.palette import Surface
from coterie.core.privacy.noise import NOISES
from coterie.core.style import WIDTH, Roles, draw_line, few_ticks, heading, looks
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import Rows
from coterie.core.tensors.stacked import Ragged

Scorer = Callable[[Tensor, Tensor], Tensor]


def touched(change: Tensor, public: Tensor) -> Tensor:
    """Score 1 for a row that changed (F³CRec, §5.6: each of them is positive with n⁺/(n⁺ + n⁻)).

    Args:
        change: ``(C, n, d)`` changes of the item rows.
        public: ``(n, d)`` the table they were computed from.

    Returns:
        ``(C, n)``.
    """
    return (change != 0).any(2).to(change.dtype)


def change_norm(change: Tensor, public: Tensor) -> Tensor:
    """Score by the length of the row's change: positives, being few, are moved further.

    Shapes as in `touched`.
    """
    return change.norm(dim=2)


def direction(change: Tensor, public: Tensor) -> Tensor:
    """Score by the projection on the one direction in which a client's rows move.

    A bilinear score has the gradient (σ - y) v for every item, with the client's vector v (or the
    weights of its head): the change has rank one for each local step, positives move along v,
    sampled negatives against it. The first right singular vector of the change is v up to its sign.

    The sign follows from two facts that every server knows. Negatives are sampled several to a
    positive, so in early rounds the projections sum to less than 0. Later the scores are trained,
    so most items' public rows score less than 0 with v. The two means, each over its root mean
    square, are added.

    Shapes as in `touched`.
    """
    gram = change.mT @ change
    vector = torch.linalg.eigh(gram).eigenvectors[:, :, -1]  # (C, d)
    projection = (change @ vector[:, :, None]).squeeze(2)
    moved = (change != 0).any(2)
    prior = vector @ public.T  # (C, n)
    evidence = _standardised(projection, moved) + _standardised(prior, torch.ones_like(moved))
    sign = torch.where(evidence > 0, -1.0, 1.0).to(change.dtype)
    return projection * sign[:, None]


CHANCE = "chance"
"""What a guess without any upload gets."""
SCORERS: dict[str, Scorer] = {
    "touched": touched,
    "norm": change_norm,
    "direction": direction,
}


def _standardised(values: Tensor, where: Tensor) -> Tensor:
    """Mean over root mean square of the chosen values of each client, ``(C,)``, in [-1, 1]."""
    count = where.sum(1).clamp_min(1)
    mean = (values * where).sum(1) / count
    square = (values.square() * where).sum(1) / count
    return mean / square.sqrt().clamp_min(torch.finfo(values.dtype).tiny)


# The measured attack: how well one upload tells a user's positive items (F³CRec, §5.6).

METRICS = ("auc", "precision", "recall")
_CLIENTS = 64  # whole tables at a time

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class AttackReport:
    """How well each scorer finds the positives of each client; NaN where there is no question.

    Attributes:
        values: ``scorer -> metric -> (C,)`` float64. Metrics: `auc` (chance 0.5); `precision` of
            the n⁺ best guesses, n⁺ the client's number of positives; `recall` of the 2 n⁺ best.
        chance: ``metric -> (C,)``, what guessing at random gives.
    """

    values: dict[str, dict[str, Floats]]
    chance: dict[str, Floats]

    def means(self) -> dict[str, float]:
        """Means over the clients, named ``scorer/metric`` and ``chance/metric``."""
        return {
            f"{row['scorer']}/{name}": float(row[name]) for row in self.rows() for name in METRICS
        }

    def rows(self) -> list[dict[str, str | float]]:
        """One row a scorer, chance last, for a table."""
        columns = {**self.values, CHANCE: self.chance}
        return [
            {"scorer": name, **{metric: _mean(value) for metric, value in metrics.items()}}
            for name, metrics in columns.items()
        ]


def measure(
    uploads: Rows,
    public_table: Tensor,
    positives: Ragged,
    candidates: Ragged | None = None,
    blur: Callable[[Rows, Tensor], Rows] | None = None,
) -> AttackReport:
    """Attack one upload of each client.

    Ties count as half (AUC) or as their expectation under a random order.

    Args:
        uploads: changes of the item table by C clients, with noise or without.
        public_table: ``(n, d)`` the table the changes were computed from.
        positives: the clients' true positive items in that round.
        candidates: the items to be told apart for each client; None = all n. With the touched rows
            of the upload before noise this asks: which of the items trained on were positive?
        blur: adds noise to the uploads of the clients at some places, ``(c,)`` int64.

    Raises:
        ValueError: sizes of the arguments differ.
    """
    n_items, width = public_table.shape
    if len(positives) != uploads.n_clients or width != uploads.width:
        raise ValueError(
            f"{uploads.n_clients} uploads of width {uploads.width}, but positives of "
            f"{len(positives)} clients and a table of width {width}"
        )
    true = positives.mask(n_items).cpu().numpy()
    asked = np.ones_like(true) if candidates is None else candidates.mask(n_items).cpu().numpy()
    parts: dict[str, list[Floats]] = {name: [] for name in SCORERS}
    for index in torch.split(torch.arange(uploads.n_clients), _CLIENTS):
        taken: Rows = uploads.take(index)
        change = (taken if blur is None else blur(taken, index)).dense()
        part = index.cpu().numpy()
        for name, score in SCORERS.items():
            scores = score(change, public_table.to(change.dtype)).double().cpu().numpy()
            parts[name].append(_metrics(scores, true[part], asked[part]))
    values = {
        name: dict(zip(METRICS, np.concatenate(part, axis=1), strict=True))
        for name, part in parts.items()
    }
    chance = _metrics(np.zeros(true.shape), true, asked)
    return AttackReport(values, dict(zip(METRICS, chance, strict=True)))


def attack_curve(
    uploads: Rows,
    public_table: Tensor,
    positives: Ragged,
    scales: Sequence[float],
    key: Key,
    *,
    noise: Literal["laplace", "gaussian"] = "laplace",
    candidates: Ragged | None = None,
) -> dict[float, AttackReport]:
    """Attack the same uploads behind noise of several scales, λ or σ; scale 0 = as they are.

    All scales use the same draws of the clients' keys, ``(C,)``. Uploads are without noise, the
    other arguments as in `measure`.
    """
    kind = NOISES[noise]

    def behind(scale: float) -> AttackReport:
        def blur(part: Rows, index: Tensor) -> Rows:
            return kind(scale).rows(part, key.take(index)) if scale > 0 else part

        return measure(uploads, public_table, positives, candidates, blur)

    return {scale: behind(scale) for scale in scales}


def plot_curve(curve: dict[float, AttackReport], path: Path) -> Path | None:
    """Draw what `attack_curve` gave as PNG and SVG: the AUC of each scorer over the noise.

    Returns:
        The PNG; None if it cannot be drawn, which is warned of.
    """
    lines = {
        name: [report.means()[f"{name}/auc"] for report in curve.values()]
        for name in (*SCORERS, CHANCE)
    }

    def draw(figure_class: Any, surface: Surface) -> Any:
        figure = figure_class(figsize=(WIDTH, 3.4), layout="constrained")
        axes = figure.subplots()
        chosen = looks({name: line[-1] for name, line in lines.items()}, Roles("", (CHANCE,)))
        for name, line in lines.items():
            draw_line(axes, list(curve), line, chosen[name], name, surface, name != CHANCE)
        axes.set(xlabel="scale of the noise", ylabel="AUC, mean over clients", ylim=(0, 1.03))
        few_ticks(axes.xaxis)
        few_ticks(axes.yaxis)
        heading(figure, "How well one upload tells which items its client had")
        return figure

    return path if draw_files(path, draw) else None


def _metrics(scores: Floats, true: Flags, asked: Flags) -> Floats:
    """AUC, precision at n⁺ and recall at 2 n⁺ of each client, ``(3, C)``."""
    from scipy.stats import rankdata  # a second of imports that nothing but an attack needs

    true = true & asked
    n_true, n_asked = true.sum(1), asked.sum(1)
    scores = np.where(asked, scores, -np.inf)
    ranks = rankdata(scores, axis=1) - (~asked).sum(1, keepdims=True)
    n_false = n_asked - n_true
    with np.errstate(invalid="ignore", divide="ignore"):
        # Mann-Whitney: the share of (positive, other) pairs in the right order.
        auc = ((ranks * true).sum(1) - n_true * (n_true + 1) / 2) / (n_true * n_false)
        precision = _hits(scores, true, n_true) / n_true
        recall = _hits(scores, true, np.minimum(2 * n_true, n_asked)) / n_true
    found = np.stack([auc, precision, recall])
    return np.where((n_true > 0) & (n_false > 0), found, np.nan)


def _hits(scores: Floats, true: Flags, count: NDArray[np.int64]) -> Floats:
    """Expected positives among the ``count`` best of each client, ties in random order."""
    order = -np.sort(-scores, axis=1)
    last = np.take_along_axis(order, np.maximum(count - 1, 0)[:, None], axis=1)
    above, tied = scores > last, scores == last
    share = (count - above.sum(1)) / np.maximum(tied.sum(1), 1)
    return (above & true).sum(1) + share * (tied & true).sum(1)


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
