"""Classifiers: a body that makes features, a head that makes a score for each class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.data.samples.samples import MASK
from coterie.core.local_training.losses import Batch
from coterie.core.local_training.row_optimizer import Params


class Classifier(nn.Module):
    """A body and a linear head, trained by cross-entropy.

    A batch is a dict with ``x``, ``(B, ...)``, and the labels ``y``, ``(B,)`` int64.

    Args:
        body: ``(B, ...) -> (B, width)``.
        head: ``(B, width) -> (B, n_classes)``.
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Score the classes, ``(B, n_classes)``."""
        scores: Tensor = self.head(self.body(x))
        return scores

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Mean cross-entropy, ``()``."""
        return F.cross_entropy(self(batch["x"]), batch["y"])

    def correct(self, batch: dict[str, Tensor]) -> Tensor:
        """Whether the class with the highest score is the label, ``(B,)`` bool."""
        return first_best(self(batch["x"])) == batch["y"]


def first_best(scores: Tensor) -> Tensor:
    """Find the class with the highest score, the first of those that tie, ``(B,)`` int64.

    Classes that a client never saw keep equal scores, up to rounding; which of them is the highest
    would depend on how many clients are computed at once. So scores tie that differ by no more than
    ε^¾ of the largest in size, with ε the precision of numbers.

    Args:
        scores: ``(B, n_classes)``; where one is NaN, the first of those is given.

    Example:
        >>> first_best(torch.tensor([[1.0, 2.0 - 1e-7, 2.0], [0.0, 3.0, 1.0]])).tolist()
        [1, 1]
    """
    best = scores.amax(-1, keepdim=True)
    sizes = scores.abs().nan_to_num(0.0, posinf=0.0).amax(-1, keepdim=True)
    ties = scores >= best - torch.finfo(scores.dtype).eps ** 0.75 * sizes
    return (ties | scores.isnan()).byte().argmax(-1)


class SoftmaxRegression(Classifier):
    """Multi-class logistic regression, started at zero: its loss is convex.

    Args:
        width: number of features.
        n_classes: number of classes.

    Example:
        >>> SoftmaxRegression(3, 2)(torch.ones(1, 3)).tolist()
        [[0.0, 0.0]]
    """

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__(nn.Identity(), nn.Linear(width, n_classes))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @staticmethod
    def slope(params: Params, batch: Batch) -> tuple[Params, Tensor]:
        """Gradients and losses of stacked clients in closed form.

        See `coterie.core.local_training.fit.Slope`.

        With the probabilities P and the one-hot labels Y of B samples, the gradient of the mean
        cross-entropy in the scores is (P - Y)/B; autograd would take three times as long.

        Args:
            params: of K clients, ``head.weight`` ``(K, n_classes, width)``, ``head.bias``
                ``(K, n_classes)``.
            batch: ``x`` ``(K, B, width)``, ``y`` ``(K, B)``, perhaps ``MASK`` ``(K, B)``.
        """
        x, y = batch["x"], batch["y"].unsqueeze(-1)
        weight, bias = params["head.weight"], params["head.bias"]
        logs = torch.baddbmm(bias.unsqueeze(1), x, weight.mT).log_softmax(-1)
        right = logs.gather(-1, y)  # (K, B, 1)
        residual = logs.exp_().scatter_(-1, y, right.expm1())  # P - Y
        if MASK in batch:
            mask = batch[MASK].to(residual.dtype)
            share = (mask / mask.sum(1, keepdim=True)).unsqueeze(-1)
            residual, loss = residual * share, -(right * share).sum((1, 2))
        else:
            residual, loss = residual.div_(y.shape[1]), right.sum((1, 2)) / -y.shape[1]
        return {"head.weight": torch.bmm(residual.mT, x), "head.bias": residual.sum(1)}, loss
