"""What hides the gradients of FedPerGNN: made-up rows, clipping, noise."""

import math

import pytest
import torch
from scipy import stats
from tests.core.methods.ranking.few_users import KEY, normal

from coterie.core.methods.ranking.user_graphs import (
    choose_pseudo_items,
    privatise,
    pseudo_factors,
    to_rows,
)


def test_pseudo_rows_have_the_mean_and_covariance_of_the_real_ones():
    n_items, n_real = 60_000, 12
    factor = torch.zeros(1, 3, n_items, dtype=torch.float64)
    factor[:, :, :n_real] = normal("f", 1, 3, n_real) + torch.tensor([[[1.0], [0.0], [-2.0]]])
    basis = normal("b", 1, 3, 5)
    touched = torch.zeros(1, n_items, dtype=torch.bool)
    touched[:, :n_real] = True
    key = KEY.fold(torch.tensor([3]))
    filled = pseudo_factors(key, factor, touched, ~touched)
    assert torch.equal(filled[:, :, :n_real], factor[:, :, :n_real])
    rows = to_rows(filled, basis, torch.ones_like(touched)).values
    real, made_up = rows[:n_real], rows[n_real:]
    scale = real.std(0, correction=0)
    assert ((made_up.mean(0) - real.mean(0)).abs() < 5 * scale / math.sqrt(n_items)).all()
    covariance = torch.cov(real.T, correction=0)
    error = (torch.cov(made_up.T) - covariance).abs() / scale.outer(scale)
    assert error.max() < 5 * math.sqrt(2 / n_items)


def test_pseudo_items_are_drawn_evenly_from_the_others():
    touched = torch.zeros(4000, 8, dtype=torch.bool)
    touched[:, :3] = True
    chosen = choose_pseudo_items(KEY.fold(torch.arange(4000)), touched, 2)
    assert torch.equal(chosen.sum(1), torch.full((4000,), 2))
    assert chosen[:, :3].sum() == 0
    assert stats.chisquare(chosen[:, 3:].sum(0).numpy()).pvalue > 1e-3
    nobody = choose_pseudo_items(KEY.fold(torch.arange(2)), torch.zeros(2, 8).bool(), 2)
    assert nobody.sum() == 0  # without a gradient there is nothing to hide


@pytest.mark.parametrize("width", [1, 4, 7])
def test_noise_is_laplace_and_independent(width):
    n = 5_000
    key, owner = KEY.fold(torch.arange(10)), torch.arange(10).repeat_interleave(n)
    zeros = torch.zeros(10 * n, width)
    noise = privatise(key, zeros, owner, torch.arange(n).repeat(10), 0.1, 0.2)
    flat = noise.flatten().numpy()
    assert flat.var() == pytest.approx(2 * 0.2**2, rel=0.03)
    assert stats.kstest(flat[:50_000], stats.laplace(scale=0.2).cdf).pvalue > 1e-3
    assert abs(stats.spearmanr(flat[:-1], flat[1:])[0]) < 5 / math.sqrt(flat.size)
    assert len(set(flat.tolist())) > 0.95 * min(flat.size, 2**24 // 4)
    part = privatise(key, zeros[:5], owner[:5] + 4, torch.tensor([7, 1, 2, 3, 4]), 0.1, 0.2)
    torch.testing.assert_close(part[0], noise[4 * n + 7])


def test_clipping_is_by_coordinate_and_idempotent():
    key, where = KEY.fold(torch.arange(3)), torch.arange(3)
    values = torch.tensor([[0.05, -3.0], [0.3, 0.1], [-0.1, 0.0]])
    once = privatise(key, values, where, where, 0.1, 0.0)
    assert torch.equal(once, torch.tensor([[0.05, -0.1], [0.1, 0.1], [-0.1, 0.0]]))
    assert torch.equal(privatise(key, once, where, where, 0.1, 0.0), once)
    assert torch.equal(privatise(key, values, where, where, None, 0.0), values)
