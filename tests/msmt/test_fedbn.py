"""Federated batch normalisation against loops and against what Appendix A proves of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.msmt.papers_norm import federated_batch_norm, unwhitened, whitened

from coterie.core.tensors.keys import Key
from coterie.msmt.aggregation.fedbn import Affine, normalised_average, statistics

SIZES = st.integers(1, 6)


def parameters(key: Key, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return key.normal(*shape, dtype=dtype)


def affine_of(key: Key, *shape: int, dtype: torch.dtype = torch.float64) -> Affine:
    gamma = key.fold("gamma").normal(*shape, dtype=dtype)
    return Affine(gamma, key.fold("beta").normal(*shape, dtype=dtype))


def loop(stack, affine, eps):
    """Eqs. 7 and 8 number by number."""
    m, d_in, h = stack.shape
    out = torch.empty_like(stack)
    for a in range(d_in):
        for b in range(h):
            values = [float(stack[i, a, b]) for i in range(m)]
            mean = sum(values) / m
            variance = sum((value - mean) ** 2 for value in values) / m
            for i in range(m):
                centred = (values[i] - mean) / (variance + eps) ** 0.5
                out[i, a, b] = float(affine.gamma[a]) * centred + float(affine.beta[a])
    return out


@given(SIZES, SIZES, SIZES, st.sampled_from([1e-8, 1e-5, 0.3]), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_it_is_the_papers_formula(m, d_in, h, eps, seed):
    key = Key.from_seed(seed)
    stack, affine = parameters(key, m, d_in, h), affine_of(key, d_in)
    found = federated_batch_norm(stack, affine, eps)
    torch.testing.assert_close(found, loop(stack, affine, eps), rtol=1e-12, atol=1e-12)


@given(
    SIZES,
    SIZES,
    st.floats(1e-9, 10.0),
    st.floats(1e-3, 1e3),
    st.sampled_from([(torch.float32, 2e-6), (torch.float64, 4e-15)]),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_the_mean_is_beta_whatever_was_uploaded(experts, clients, eps, scale, kind, seed):
    """Appendix A; and the spread is γ_g σ_g / sqrt(σ_g² + ε_g)."""
    dtype, close = kind
    key = Key.from_seed(seed)
    stack = scale * parameters(key, experts * clients, 7, 5, dtype=dtype)
    affine = affine_of(key, clients, 7, dtype=dtype).average()
    found = federated_batch_norm(stack, affine, eps)
    beta = normalised_average(affine, stack[0])
    assert float((found.mean(0) - beta).abs().max()) <= close
    variance = statistics(stack).variance
    spread = affine.gamma.abs()[:, None] * (variance / (variance + eps)).sqrt()
    torch.testing.assert_close(found.std(0, correction=0), spread, rtol=30 * close, atol=10 * close)


def test_a_single_parameter_becomes_beta():
    key = Key.from_seed(3)
    stack, affine = parameters(key, 1, 4, 3), affine_of(key, 4)
    assert torch.equal(federated_batch_norm(stack, affine)[0], affine.beta[:, None].expand(4, 3))


def test_gamma_and_beta_are_plain_means_of_the_clients():
    affine = affine_of(Key.from_seed(4), 3, 5)
    average = affine.average()
    for a in range(5):
        assert float(average.gamma[a]) == pytest.approx(sum(affine.gamma[:, a].tolist()) / 3)
        assert float(average.beta[a]) == pytest.approx(sum(affine.beta[:, a].tolist()) / 3)


def test_scalars_are_for_parameters_of_other_shapes():
    key = Key.from_seed(5)
    affine = affine_of(key, 4)
    with pytest.raises(ValueError, match=r"Affine\.scalar"):
        federated_batch_norm(parameters(key, 3, 6), affine)
    with pytest.raises(ValueError, match=r"Affine\.scalar"):
        federated_batch_norm(parameters(key, 3), affine)
    found = federated_batch_norm(parameters(key, 3, 6), affine.scalar())
    torch.testing.assert_close(found.mean(0), affine.beta.mean().expand(6))


@given(SIZES, st.floats(1e-9, 1.0), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_whitening_divides_by_the_spread_and_can_be_undone(m, eps, seed):
    key = Key.from_seed(seed)
    increments, variance = parameters(key, m, 4, 3), parameters(key.fold("v"), 4, 3).square()
    found = whitened(increments, variance, eps)
    assert float(found[0, 1, 2]) == pytest.approx(
        float(increments[0, 1, 2]) / (float(variance[1, 2]) + eps) ** 0.5
    )
    torch.testing.assert_close(unwhitened(found, variance, eps), increments)
