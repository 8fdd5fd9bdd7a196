"""The simplex solver on quadratics, whose minimum scipy finds by another method."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from coterie.core.solvers import frank_wolfe_gap, minimise, onto_simplex


class Quadratic:
    """p'Hp/2 - b'p with a random positive definite H."""

    convex = True

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(n, n))
        self.n, self.h, self.b = n, root @ root.T + 0.1 * np.eye(n), 3 * rng.normal(size=n)

    def at(self, p: np.ndarray) -> float:
        return float(p @ self.h @ p / 2 - self.b @ p)

    def slope(self, p: torch.Tensor) -> tuple[float, torch.Tensor]:
        value = p.numpy()
        return self.at(value), torch.from_numpy(self.h @ value - self.b)


def reference(loss: Quadratic) -> float:
    start, bounds = np.full(loss.n, 1 / loss.n), [(0, 1)] * loss.n
    whole = {"type": "eq", "fun": lambda p: p.sum() - 1}
    found = minimize(
        loss.at, start, method="SLSQP", bounds=bounds, constraints=whole, options={"ftol": 1e-14}
    )
    return float(found.fun)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [1, 3, 20])
def test_the_minimum_is_that_of_scipy_and_certified(n, seed):
    loss = Quadratic(n, seed)
    found = minimise(loss, tolerance=1e-9)
    assert found.value == pytest.approx(reference(loss), abs=1e-6)
    assert found.gap <= 1e-9
    assert loss.at(found.p.numpy()) == found.value
    assert bool((found.p >= 0).all())
    assert float(found.p.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("max_steps", [0, 1, 4])
def test_the_bound_holds_wherever_the_search_stops(max_steps):
    loss = Quadratic(8, 7)
    least = reference(loss)
    found = minimise(loss, tolerance=0.0, max_steps=max_steps)
    assert found.bound is not None
    assert found.bound <= least + 1e-9
    assert found.steps <= max_steps
    point = torch.full((8,), 1 / 8, dtype=torch.float64)
    value, slope = loss.slope(point)
    assert value - least <= frank_wolfe_gap(point, slope) + 1e-9


def test_the_projection_is_the_nearest_point():
    for seed in range(5):
        v = np.random.default_rng(seed).normal(size=6)
        loss = Quadratic(6, 0)
        loss.h, loss.b = np.eye(6), v
        ours = onto_simplex(torch.from_numpy(v)).numpy()
        assert loss.at(ours) == pytest.approx(reference(loss), abs=1e-9)


def test_a_loss_that_is_no_number_is_refused_at_the_start():
    loss = Quadratic(2, 0)
    loss.b = np.full(2, np.nan)
    with pytest.raises(ValueError, match="not finite"):
        minimise(loss)
