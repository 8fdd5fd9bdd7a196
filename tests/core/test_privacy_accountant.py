"""Epsilon against closed forms: exact Gaussian, pure Laplace, and sampling."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from coterie.core.privacy.accountant import Accountant

DELTA = 1e-5


def exact_gaussian(ratio: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism with sensitivity / sigma = ratio (Balle & Wang, 2018)."""

    def excess(epsilon: float) -> float:
        upper = stats.norm.cdf(ratio / 2 - epsilon / ratio)
        return upper - math.exp(epsilon) * stats.norm.cdf(-ratio / 2 - epsilon / ratio) - delta

    return optimize.brentq(excess, 0.0, 200.0)


def rounds(accountant: Accountant, count: int, **step: float) -> Accountant:
    for _ in range(count):
        accountant.step(**step)
    return accountant


@pytest.mark.parametrize(("sigma", "count"), [(10.0, 1), (2.0, 1), (8.0, 30), (50.0, 400)])
def test_gaussian_rounds_are_just_above_the_exact_value(sigma: float, count: int) -> None:
    # Uploads of norm at most 0.5 are at most 1 apart; T rounds are one round of ratio sqrt(T).
    got = rounds(Accountant("gaussian", sigma, 0.5, DELTA), count).epsilon()
    exact = exact_gaussian(math.sqrt(count) / sigma, DELTA)
    assert exact <= got <= 1.25 * exact


def test_gaussian_is_below_the_textbook_bound() -> None:
    # Dwork & Roth, A.1: sigma = sqrt(2 ln(1.25 / delta)) sensitivity / epsilon, epsilon < 1.
    epsilon = 0.9
    sigma = math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon
    assert rounds(Accountant("gaussian", sigma, 0.5, DELTA), 1).epsilon() < epsilon


def test_only_the_ratio_of_noise_and_clip_counts() -> None:
    one = rounds(Accountant("gaussian", 3.0, 1.0, DELTA), 5).epsilon()
    two = rounds(Accountant("gaussian", 30.0, 10.0, DELTA), 5).epsilon()
    assert one == pytest.approx(two)
    assert rounds(Accountant("gaussian", 6.0, 1.0, DELTA), 5).epsilon() < one


def test_the_server_pays_for_participations_and_gains_nothing_from_sampling() -> None:
    full = rounds(Accountant("gaussian", 5.0, 1.0, DELTA), 20)
    sampled = rounds(Accountant("gaussian", 5.0, 1.0, DELTA), 20, fraction=0.1, clients=50)
    assert sampled.epsilon() == full.epsilon()
    assert (
        sampled.epsilon(participations=2)
        == rounds(Accountant("gaussian", 5.0, 1.0, DELTA), 2).epsilon()
    )
    assert sampled.epsilon(participations=0) == 0.0


def test_the_sum_has_the_noise_of_all_and_sampling_amplifies() -> None:
    def sum_of(clients: int, fraction: float) -> float:
        accountant = Accountant("gaussian", 2.0, 1.0, DELTA)
        return rounds(accountant, 10, fraction=fraction, clients=clients).epsilon("sum")

    many = rounds(Accountant("gaussian", 20.0, 1.0, DELTA), 10)
    assert sum_of(100, 1.0) == pytest.approx(many.epsilon(), rel=1e-6)
    assert sum_of(100, 0.1) < 0.7 * sum_of(100, 1.0)
    assert sum_of(100, 0.1) < sum_of(100, 0.5) < sum_of(100, 1.0)
    alone = rounds(Accountant("gaussian", 2.0, 1.0, DELTA), 10)
    assert sum_of(1, 1.0) == pytest.approx(alone.epsilon(), rel=1e-6)


def test_sampling_bound_holds_for_the_simplest_attack() -> None:
    # Clients hold -C or +C; the adversary tells sum +C of one drawn client from -C. With m = 1 of
    # n the outputs are mixtures of normals; the exact delta at the epsilon reported may not be
    # above the delta promised.
    sigma, share, delta = 1.5, 0.2, 1e-3
    accountant = Accountant("gaussian", sigma, 1.0, delta)
    accountant.step(fraction=share, clients=1)
    epsilon = accountant.epsilon("sum")
    grid = np.linspace(-20, 20, 400_001)
    rest = stats.norm.pdf(grid, -1, sigma)
    mixed = (1 - share) * rest + share * stats.norm.pdf(grid, 1, sigma)
    for p, q in ((mixed, rest), (rest, mixed)):
        spent = np.clip(p - math.exp(epsilon) * q, 0, None).sum() * (grid[1] - grid[0])
        assert spent <= delta


def test_laplace_is_pure_and_tight() -> None:
    accountant = rounds(Accountant("laplace", 4.0, 0.5, DELTA), 3)
    assert accountant.epsilon() == pytest.approx(3 * 2 * 0.5 / 4.0)
    # The largest log ratio of densities of two uploads at L1 distance 2 C is reached.
    grid = torch.linspace(-30, 30, 1001, dtype=torch.float64)
    ratio = ((grid + 0.5).abs() - (grid - 0.5).abs()) / 4.0
    assert ratio.max().item() == pytest.approx(accountant.epsilon(participations=1))


def test_laplace_sampling_without_replacement() -> None:
    accountant = rounds(Accountant("laplace", 1.0, 1.0), 2, fraction=0.25, clients=10)
    assert accountant.epsilon("sum") == pytest.approx(2 * math.log(1 + 0.25 * (math.exp(2) - 1)))
    huge = rounds(Accountant("laplace", 1e-3, 1.0), 1, fraction=0.5, clients=10)
    assert huge.epsilon("sum") == pytest.approx(2000 + math.log(0.5))


@pytest.mark.parametrize(
    ("accountant", "why"),
    [
        (Accountant("laplace", 0.5), "not clipped"),  # the paper's own noise
        (Accountant("gaussian", 0.5), "not clipped"),
        (Accountant("none", clip=1.0), "no noise"),
        (Accountant("gaussian", 1.0, 1.0, uploads="padded"), "depends on the client's items"),
    ],
)
def test_nothing_is_guaranteed(accountant: Accountant, why: str) -> None:
    assert accountant.epsilon() == 0.0  # nothing has left yet
    accountant.step()
    assert accountant.epsilon() == math.inf
    assert accountant.epsilon("sum") == math.inf
    assert why in accountant.guarantee()
    assert accountant.guarantee().startswith("no guarantee")


def test_state_is_plain_and_survives_a_checkpoint(tmp_path) -> None:
    accountant = rounds(Accountant("gaussian", 4.0, 1.0, DELTA), 7, fraction=0.3, clients=12)
    torch.save(accountant.to_plain(), tmp_path / "state.pt")
    other = Accountant("gaussian", 4.0, 1.0, DELTA)
    other.load_plain(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other == accountant
    assert other.epsilon("sum") == accountant.epsilon("sum")
    assert "differential privacy" in other.guarantee()


@pytest.mark.parametrize("step", [{"fraction": 0.0}, {"fraction": 1.5}, {"clients": 0}])
def test_rounds_without_clients_are_refused(step: dict) -> None:
    with pytest.raises(ValueError, match="fraction"):
        Accountant().step(**step)
