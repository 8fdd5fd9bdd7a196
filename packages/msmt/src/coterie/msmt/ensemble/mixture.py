"""How the logits of two networks are mixed: weights by AUC, then a scale that gives probabilities.

All is chosen on validation samples, for each scenario and task by itself, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from coterie.msmt.data.describe import auc

_LEAST_SLOPE = 1e-3
"""Of a calibration, in units of the score's deviation: 0 would make all samples equal, and less
would turn their order round."""
_STEPS, _HALVINGS = 50, 30
_NEAR = 1e-10


@dataclass(frozen=True)
class Mixture:
    """What is added up: slopes[0] own + slopes[1] partner + offset, of each task.

    Attributes:
        slopes: ``(2, T)`` float64, 0 or more.
        offset: ``(T,)`` float64.
        weight: ``(T,)`` float64 of the own network, from 0 to 1, once both are in units of their
            deviations.
    """

    slopes: Tensor
    offset: Tensor
    weight: Tensor


def mixture(own: Tensor, partner: Tensor, labels: Tensor, shares: int) -> Mixture:
    """Choose how two networks' logits are mixed.

    Both are divided by their standard deviations on these samples; the weight with the highest AUC
    counts, of equal ones the lowest. What comes out has the order of the samples and no
    probabilities, so a slope and an offset are fitted to it (Platt). A task of which there are not
    both classes can choose nothing: its logits are averaged.

    Args:
        own: ``(n, T)`` logits of the scenario's own network on validation samples.
        partner: the same of the other network.
        labels: ``(n, T)`` 0 or 1.
        shares: how many weights are tried, from 0 to 1.

    Example:
        >>> good, bad = torch.tensor([[-1.0], [0.0], [3.0]]), torch.tensor([[2.0], [0.0], [-2.0]])
        >>> mixture(good, bad, torch.tensor([[0], [0], [1]]), 11).weight
        tensor([0.6000], dtype=torch.float64)
    """
    tasks = labels.shape[1]
    zeros = own.new_zeros(tasks, dtype=torch.float64)
    found = Mixture(torch.stack([zeros, zeros]) + 0.5, zeros, zeros + 0.5)
    for task in range(tasks):
        label = labels[:, task]
        if not 0 < int(label.sum()) < len(label):
            continue
        both = torch.stack([own[:, task], partner[:, task]]).double()
        units = _units(both)
        weight = _best_weight(both / units, label, shares)
        parts = torch.stack([weight, 1 - weight])[:, None] / units
        slope, offset = calibration((parts * both).sum(0), label)
        found.slopes[:, task] = slope * parts[:, 0]
        found.offset[task], found.weight[task] = offset, weight
    return found


def _units(scores: Tensor) -> Tensor:
    """Standard deviations of rows, ``(R, 1)``; 1 of a row whose numbers are all the same."""
    found = scores.std(1, keepdim=True)  # which rounding may keep above 0
    varies = scores.amax(1, keepdim=True) > scores.amin(1, keepdim=True)
    return torch.where(varies, found, torch.ones_like(found))


def _best_weight(both: Tensor, label: Tensor, shares: int) -> Tensor:
    weights = torch.linspace(0, 1, shares, dtype=torch.float64, device=both.device)
    found = torch.stack(
        [auc(weight * both[0] + (1 - weight) * both[1], label) for weight in weights]
    )
    return weights[found.argmax()]


def calibration(score: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Fit the logits slope · score + offset to labels, by Newton's method.

    Labels count as (N₊ + 1)/(N₊ + 2) and 1/(N₋ + 2), as in Platt (1999): so there is a best slope
    also where a score tells all samples. It is above 0: the order stays.

    Args:
        score: ``(n,)``.
        label: ``(n,)`` 0 or 1, both of them.

    Example:
        >>> score = torch.tensor([0.0, 1.0, 2.0, 3.0])
        >>> slope, offset = calibration(score, torch.tensor([0, 1, 0, 1]))
        >>> round(float(slope), 3), round(float(offset / slope), 3)
        (0.411, -1.5)
    """
    score, positive = score.double(), float(label.sum())
    high, low = (positive + 1) / (positive + 2), 1 / (len(label) - positive + 2)
    target = torch.where(label > 0, high, low).to(score)
    centre, unit = score.mean(), _units(score[None])[0, 0]
    x = torch.stack([(score - centre) / unit, torch.ones_like(score)], 1)
    at = torch.stack([torch.zeros_like(centre), target.mean().logit()])
    for _ in range(_STEPS):
        share = (x @ at).sigmoid()
        uphill = x.T @ (share - target)
        if float(uphill.abs().max()) <= _NEAR * len(score):
            break
        curvature = (x.T * (share * (1 - share))) @ x
        at = _descended(at, torch.linalg.pinv(curvature, hermitian=True) @ uphill, x, target)
    if float(at[0]) < _LEAST_SLOPE:
        at = torch.stack([torch.full_like(centre, _LEAST_SLOPE), target.mean().logit()])
    slope = at[0] / unit
    return slope, at[1] - slope * centre


def _descended(at: Tensor, step: Tensor, x: Tensor, target: Tensor) -> Tensor:
    """Go along Newton's step as far as the loss falls; a step that never does is none."""
    before = binary_cross_entropy_with_logits(x @ at, target)
    for halving in range(_HALVINGS):
        found = at - step * 0.5**halving
        if bool(binary_cross_entropy_with_logits(x @ found, target) < before):
            return found
    return at
