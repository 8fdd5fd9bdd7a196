"""How two networks are mixed, against scikit-learn, numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from coterie.core.tensors.keys import Key
from coterie.msmt.ensemble.mixture import calibration, mixture

Array = NDArray[np.float64]
SHARES = 11


def drawn(n: int = 60, tasks: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two networks that know different halves of the truth, in units far apart."""
    key = Key.from_seed(4)
    known, other = (key.fold(name).normal(n, tasks, dtype=torch.float64) for name in ("a", "b"))
    noise = key.fold("noise").normal(n, tasks, dtype=torch.float64)
    labels = (known + 0.7 * other + 0.8 * noise > 0.4).to(torch.uint8)
    return 9 * known + 2, 0.1 * other - 1, labels


def naive(own: Array, partner: Array, label: Array) -> tuple[float, Array]:
    """The weight with the highest AUC, and the mixed score, by loops."""
    best, found = -1.0, (0.0, own)
    for step in range(SHARES):
        weight = step / (SHARES - 1)
        score = weight * own / own.std(ddof=1) + (1 - weight) * partner / partner.std(ddof=1)
        if (quality := roc_auc_score(label, score)) > best + 1e-12:
            best, found = quality, (weight, score)
    return found


def platt(score: Array, label: Array) -> Array:
    """Slope and offset by a general minimiser of the loss of smoothed labels."""
    high, low = (label.sum() + 1) / (label.sum() + 2), 1 / ((1 - label).sum() + 2)
    target = np.where(label > 0, high, low)

    def loss(at: Array) -> float:
        z = at[0] * score + at[1]
        return float((np.logaddexp(0, z) - target * z).sum())

    found: Array = minimize(loss, [1.0, 0.0], method="BFGS", options={"gtol": 1e-9}).x
    return found


def test_weights_and_probabilities_are_those_of_a_loop() -> None:
    own, partner, labels = drawn()
    found = mixture(own, partner, labels, SHARES)
    for task in range(labels.shape[1]):
        a, b, y = (part[:, task].numpy().astype(float) for part in (own, partner, labels))
        weight, score = naive(a, b, y)
        assert 0 < weight < 1
        assert float(found.weight[task]) == pytest.approx(weight)
        slope, offset = platt(score, y)
        expected = slope * score + offset
        ours = found.slopes[0, task] * own[:, task] + found.slopes[1, task] * partner[:, task]
        ours = (ours + found.offset[task]).numpy()
        assert np.abs(ours - expected).max() < 1e-4
        assert roc_auc_score(y, ours) == roc_auc_score(y, score)


@pytest.mark.parametrize("which", [0, 1])
def test_a_network_that_tells_nothing_counts_nothing(which: int) -> None:
    own, _, labels = drawn()
    both = [own, torch.zeros_like(own)]
    both = both if which else both[::-1]
    found = mixture(*both, labels, SHARES)
    assert (found.slopes[which] * both[which]).abs().max() == 0
    assert (found.slopes[1 - which] > 0).all()


def test_a_network_that_is_constant_has_no_huge_slope() -> None:
    """Seven times .1 may have a deviation of 1e-17 in float64, by rounding."""
    constant = torch.full((7, 1), 0.1, dtype=torch.float64)
    wrong = torch.arange(7, dtype=torch.float64)[:, None]
    found = mixture(constant, wrong, (wrong < 3).long(), SHARES)
    assert 0 <= float(found.slopes.max()) < 1
    assert float(found.weight) == 1  # half is better than an order that is turned round


def test_equal_weights_give_the_lowest() -> None:
    own, _, labels = drawn()
    assert mixture(own, own, labels, SHARES).weight.tolist() == [0, 0, 0]


def test_a_task_of_one_class_has_the_mean_of_both_logits() -> None:
    own, partner, labels = drawn()
    labels[:, 1] = 1
    found = mixture(own, partner, labels, SHARES)
    assert found.slopes[:, 1].tolist() == [0.5, 0.5]
    assert (float(found.offset[1]), float(found.weight[1])) == (0, 0.5)
    assert found.slopes[0, 0] != 0.5  # the others choose
    nobody = mixture(own[:0], partner[:0], labels[:0], SHARES)
    assert nobody.slopes.tolist() == [[0.5] * 3] * 2


@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e6])
def test_a_score_that_tells_all_has_finite_probabilities(factor: float) -> None:
    score = torch.arange(10, dtype=torch.float64) * factor
    label = (torch.arange(10) > 4).long()
    slope, offset = calibration(score, label)
    shares = (slope * score + offset).sigmoid()
    assert bool(shares.isfinite().all())
    assert float(shares[:5].max()) < 0.5 < float(shares[5:].min())
    assert float(shares.min()) > 0.05  # 1/(5 + 2) is as sure as five samples make it


def test_a_score_of_the_wrong_order_is_not_turned_round() -> None:
    score = torch.arange(10, dtype=torch.float64)
    slope, offset = calibration(score, (torch.arange(10) < 4).long())
    assert float(slope) > 0
    assert float((slope * score + offset).sigmoid().mean()) == pytest.approx(0.408, abs=0.01)
