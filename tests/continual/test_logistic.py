"""Sigmoid and cross entropy of a compiled loop, against numpy in float64."""

import numpy as np
import pytest
import torch

from coterie.continual.touched_kernels import logistic


def run(scores, labels):
    """Errors and losses."""
    packed = (2 * np.arange(len(scores)) + labels).astype(np.int32)
    errors, losses = scores.copy(), np.empty_like(scores)
    logistic(packed, errors, losses, np.empty(len(scores), np.int32))
    return torch.from_numpy(errors), torch.from_numpy(losses)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 4e-7), (np.float64, 1e-14)])
@pytest.mark.parametrize("label", [0, 1])
def test_close_to_numpy(dtype, tolerance, label):
    near = np.linspace(-20, 20, 40_001)
    scores = np.concatenate([near, np.linspace(-88, 88, 3_001), [0.0, -0.0]]).astype(dtype)
    errors, losses = run(scores, label)
    exact = scores.astype(np.float64)
    wanted = torch.from_numpy(1 / (1 + np.exp(-exact)) - label)
    # Beside 1 numbers have coarse steps, whoever subtracts.
    eps = np.finfo(dtype).eps
    # An exponent is rounded where a processor multiplies and adds in two steps.
    near_enough = torch.from_numpy(tolerance + eps * np.abs(exact))
    far = (errors.double() - wanted).abs() - near_enough * wanted.abs()
    assert float(far.max()) <= (2 * eps if label else 1e-37)
    wanted = torch.from_numpy(np.logaddexp(0, exact * (1 - 2 * label)))
    far = (losses.double() - wanted).abs() - near_enough * wanted.abs()
    assert float(far.max()) <= 1e-37


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_away(dtype):
    """Nothing is left where torch leaves nothing; NaN stays."""
    scores = np.array([-1e30, -200, -89, 89, 200, 1e30, np.nan], dtype)
    for label in (0, 1):
        errors, losses = run(scores, label)
        given = torch.from_numpy(scores)
        if dtype == np.float32:
            assert torch.equal(errors == 0, torch.sigmoid(given) - label == 0)
        wrong = given * (1 - 2 * label)
        far = (wrong > 0) & wrong.isfinite()
        assert torch.equal(losses[far], wrong[far])
        assert bool((losses[wrong < 0] < 1e-38).all())
        assert bool(errors[-1].isnan())
        assert bool(losses[-1].isnan())
