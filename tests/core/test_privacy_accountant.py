"""Epsilon against closed forms: exact Gaussian and pure Laplace."""

import math

import pytest
import torch
from scipy import optimize, stats

from coterie.core.privacy.accountant import epsilon
from coterie.core.settings.sections import PrivacySettings

DELTA = 1e-5


def gaussian(sigma: float, clip: float) -> PrivacySettings:
    return PrivacySettings(clip, "gaussian", sigma, DELTA)


def exact_gaussian(ratio: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism with sensitivity / sigma = ratio (Balle & Wang, 2018)."""

    def excess(epsilon: float) -> float:
        upper = stats.norm.cdf(ratio / 2 - epsilon / ratio)
        return upper - math.exp(epsilon) * stats.norm.cdf(-ratio / 2 - epsilon / ratio) - delta

    return optimize.brentq(excess, 0.0, 200.0)


@pytest.mark.parametrize(("sigma", "count"), [(10.0, 1), (2.0, 1), (8.0, 30), (50.0, 400)])
def test_gaussian_rounds_are_just_above_the_exact_value(sigma: float, count: int) -> None:
    # Uploads of norm at most 0.5 are at most 1 apart; T rounds are one round of ratio sqrt(T).
    got = epsilon(gaussian(sigma, 0.5), count)
    exact = exact_gaussian(math.sqrt(count) / sigma, DELTA)
    assert exact <= got <= 1.25 * exact


def test_gaussian_is_below_the_textbook_bound() -> None:
    # Dwork & Roth, A.1: sigma = sqrt(2 ln(1.25 / delta)) sensitivity / epsilon, epsilon < 1.
    sigma = math.sqrt(2 * math.log(1.25 / DELTA)) / 0.9
    assert epsilon(gaussian(sigma, 0.5), 1) < 0.9


def test_only_the_ratio_of_noise_and_clip_counts() -> None:
    one = epsilon(gaussian(3.0, 1.0), 5)
    assert one == pytest.approx(epsilon(gaussian(30.0, 10.0), 5))
    assert epsilon(gaussian(6.0, 1.0), 5) < one


def test_laplace_is_pure_and_tight() -> None:
    laplace = PrivacySettings(0.5, "laplace", 4.0, DELTA)
    assert epsilon(laplace, 3) == pytest.approx(3 * 2 * 0.5 / 4.0)
    # The largest log ratio of densities of two uploads at L1 distance 2 C is reached.
    grid = torch.linspace(-30, 30, 1001, dtype=torch.float64)
    ratio = ((grid + 0.5).abs() - (grid - 0.5).abs()) / 4.0
    assert ratio.max().item() == pytest.approx(epsilon(laplace, 1))


@pytest.mark.parametrize(
    "settings",
    [
        PrivacySettings(noise="laplace", scale=0.5),  # the paper's own noise: not clipped
        PrivacySettings(noise="gaussian", scale=0.5),
        PrivacySettings(clip=1.0),  # no noise
        PrivacySettings(1.0, "gaussian", 1.0, uploads="padded"),  # rows tell of the items
    ],
)
def test_nothing_is_guaranteed(settings: PrivacySettings) -> None:
    assert epsilon(settings, 0) == 0.0  # nothing has left yet
    assert epsilon(settings, 1) == math.inf
