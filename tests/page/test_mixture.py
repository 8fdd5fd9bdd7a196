"""The best weights of a mixture against scipy, and the Frank-Wolfe bound."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch import nn

from coterie.core.errors import UserError
from coterie.core.models.classifier import Classifier, SoftmaxRegression
from coterie.core.solvers import frank_wolfe_gap, minimise, onto_simplex
from coterie.page.answer import ModelMixture, SoftmaxMixture, best_weights


def problem(n_clients, n=60, width=4, classes=3, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    weight = scale * rng.normal(size=(n_clients, classes, width))
    bias = scale * rng.normal(size=(n_clients, classes))
    x = rng.normal(size=(n, width))
    y = rng.integers(classes, size=n)
    return weight, bias, x, y


def mixture(weight, bias, x, y):
    return SoftmaxMixture(*(torch.from_numpy(part) for part in (weight, bias, x, y)))


def test_models_whose_mean_has_no_finite_loss_are_refused_in_one_line():
    weight, bias, x, y = problem(3)
    x[0] = np.nan
    with pytest.raises(UserError, match=r"no finite loss: lower 'train\.lr' or set 'train\.clip'"):
        best_weights(mixture(weight, bias, x, y), 1e-6)


def naive_loss(p, weight, bias, x, y):
    scores = np.einsum("i,ikd,nd->nk", p, weight, x) + p @ bias
    return float(np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]))


def by_scipy(parts):
    n = len(parts[0])
    found = minimize(
        naive_loss,
        np.full(n, 1 / n),
        parts,
        method="SLSQP",
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x, found.fun


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n_clients", [2, 5, 12])
def test_the_answer_is_that_of_scipy(n_clients, seed):
    parts = problem(n_clients, seed=seed)
    p, value = by_scipy(parts)
    found = minimise(mixture(*parts), tolerance=1e-10)
    assert found.value == pytest.approx(value, abs=1e-8)
    assert found.value == pytest.approx(naive_loss(found.p.numpy(), *parts), abs=1e-12)
    np.testing.assert_allclose(found.p.numpy(), p, atol=1e-4)
    assert found.gap < 1e-10
    assert float(found.p.sum()) == pytest.approx(1.0)
    assert bool((found.p >= 0).all())


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(0, 10_000),
    st.floats(0.01, 20.0),
    st.integers(0, 6),
)
def test_the_bound_is_valid_wherever_the_search_stops(n_clients, seed, scale, max_steps):
    parts = problem(n_clients, seed=seed, scale=scale)
    whole = minimise(mixture(*parts), tolerance=1e-9, max_steps=5000)
    early = minimise(mixture(*parts), tolerance=1e-9, max_steps=max_steps)
    assert early.value - whole.value <= early.gap + 1e-9
    assert early.steps <= max_steps
    p = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(n_clients)))
    value, slope = mixture(*parts).slope(p)
    assert value - whole.value <= frank_wolfe_gap(p, slope) + 1e-9


def test_the_slope_is_that_of_differences():
    parts = problem(5)
    p = np.random.default_rng(1).dirichlet(np.ones(5))
    _, slope = mixture(*parts).slope(torch.from_numpy(p))
    h = 1e-6
    for i in range(5):
        e = np.eye(5)[i] * h
        difference = (naive_loss(p + e, *parts) - naive_loss(p - e, *parts)) / (2 * h)
        assert float(slope[i]) == pytest.approx(difference, abs=1e-7)


def test_one_hot_where_one_client_is_right():
    weight = np.zeros((3, 2, 1))
    weight[1, :, 0] = [5.0, -5.0]
    weight[2, :, 0] = [-5.0, 5.0]
    x = np.array([[1.0], [-1.0]])
    found = minimise(mixture(weight, np.zeros((3, 2)), x, np.array([0, 1])), tolerance=1e-9)
    assert found.p.tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("n_clients", [100, 1000])
def test_many_clients_converge_within_the_time(n_clients):
    """1500 samples, 30 classes; about 0.1 s for 100 clients where nothing else runs."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(30, 30))
    weight = 0.3 * truth + rng.normal(size=(n_clients, 30, 30)) * rng.uniform(
        0.1, 2, size=(n_clients, 1, 1)
    )
    x = rng.normal(size=(1500, 30)) * np.arange(1, 31) ** -0.6
    y = (x @ truth.T).argmax(1)
    parts = mixture(weight, np.zeros((n_clients, 30)), x, y)
    begin = time.process_time()
    found = minimise(parts, tolerance=1e-3)
    seconds = time.process_time() - begin
    assert found.gap < 1e-3
    assert seconds < 5.0


def test_an_answer_starts_where_it_is_told():
    parts = mixture(*problem(4))
    best = minimise(parts, tolerance=1e-10)
    again = minimise(parts, start=best.p, tolerance=1e-8)
    assert again.steps == 0


def test_a_failed_client_is_refused():
    weight, bias, x, y = problem(3)
    weight[1, 0, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        mixture(weight, bias, x, y)


def stacked(models):
    return {
        name: torch.stack([dict(model.named_parameters())[name] for model in models])
        for name, _ in models[0].named_parameters()
    }


def test_autograd_agrees_with_the_softmax_regression():
    weight, bias, x, y = problem(6)
    models = []
    for w, b in zip(weight, bias, strict=True):
        model = SoftmaxRegression(4, 3).double()
        model.head.weight.data, model.head.bias.data = torch.from_numpy(w), torch.from_numpy(b)
        models.append(model)
    batch = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
    parts = [{k: v[:25] for k, v in batch.items()}, {k: v[25:] for k, v in batch.items()}]
    net = ModelMixture(models[0], stacked(models), parts)
    p = torch.full((6,), 1 / 6, dtype=torch.float64)
    exact = mixture(weight, bias, x, y)
    for ours, theirs in zip(net.slope(p), exact.slope(p), strict=True):
        torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(theirs))
    found = minimise(net, tolerance=1e-9)
    assert found.value == pytest.approx(minimise(exact, tolerance=1e-9).value, abs=1e-8)
    assert found.bound is None
    assert np.isnan(found.gap)


def test_nets_get_the_best_found_and_no_bound():
    rng = torch.Generator().manual_seed(0)
    models = []
    for _ in range(4):
        model = Classifier(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), nn.Linear(5, 2))
        for value in model.parameters():
            value.data = torch.randn(value.shape, generator=rng)
        models.append(model)
    batch = {"x": torch.randn(50, 3, generator=rng), "y": torch.arange(50) % 2}
    net = ModelMixture(models[0], stacked(models), [batch])
    start = torch.full((4,), 0.25)
    found = minimise(net, start=start, tolerance=1e-5)
    assert found.value < net.slope(start.double())[0]
    assert found.bound is None
    assert all(value.grad is None for model in models for value in model.parameters())


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8))
def test_the_projection_is_the_nearest_point(values):
    v = torch.tensor(values, dtype=torch.float64)
    p = onto_simplex(v)
    assert float(p.sum()) == pytest.approx(1.0)
    assert bool((p >= 0).all())
    # Variational inequality: <v - p, q - p> <= 0 for every corner q.
    assert float((v - p).max() - (v - p) @ p) <= 1e-9
