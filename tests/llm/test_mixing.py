"""The dynamic balance strategy against loops, published values and its own promises."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.errors import UserError
from coterie.core.metrics.clients import imbalance
from coterie.llm.mixing import (
    attention,
    cosine_similarity,
    dynamic_weights,
    inner_products,
    mix,
    row_normalised,
    softened_losses,
    warm_up,
)


def rows(k, d, seed):
    return torch.randn(k, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(adapters, losses, t, alpha, beta, tau):
    """Algorithm 1, lines 11 to 16, as a loop over clients in plain Python."""
    k = len(adapters)
    largest = max(losses)
    exp = [math.exp((loss - largest) / tau) for loss in losses]
    mixed = []
    for c in range(k):
        difficulty = exp[c] / sum(exp)
        w = math.tanh(alpha / difficulty ** ((t + 1) / beta)) if difficulty > 0 else 1.0
        weights = []
        for other in range(k):
            a, b = adapters[c], adapters[other]
            dot = sum(x * y for x, y in zip(a, b, strict=True))
            cos = dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))
            weights.append(1.0 if other == c else w * (cos + 1) / 2)
        mixed.append(
            [
                sum(weight * adapter[i] for weight, adapter in zip(weights, adapters, strict=True))
                / sum(weights)
                for i in range(len(adapters[c]))
            ]
        )
    return mixed


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 9), st.integers(0, 1000))
def test_a_round_of_mixing_equals_the_loop(k, d, t, seed):
    adapters, losses = rows(k, d, seed), rows(k, 1, seed + 1)[:, 0].abs()
    p = softened_losses(losses, 0.5)
    w = warm_up(p, t, 0.7, 5.0)
    mixed = mix(adapters, row_normalised(dynamic_weights(attention(inner_products(adapters)), w)))
    expected = by_hand(adapters.tolist(), losses.tolist(), t, 0.7, 5.0, 0.5)
    torch.testing.assert_close(mixed, torch.tensor(expected, dtype=torch.float64))


def test_warm_up_has_the_golden_values_of_both_exponents():
    p = torch.tensor([0.2], dtype=torch.float64)
    paper = [round(float(warm_up(p, t, 0.7, 5.0)), 3) for t in range(4)]
    assert paper == [0.747, 0.87, 0.951, 0.988]
    released = [float(warm_up(p, t, 0.7, 5.0, "released")) for t in range(2)]
    assert round(released[0], 3) == 0.747
    assert round(released[1], 4) == 0.9999  # bug B1: over after one round


def test_the_published_imbalances_follow_from_the_published_recalls():
    table = {
        (0.0227, 0.0338, 0.0144, 0.0163, 0.0153): 1.35,
        (0.0157, 0.0208, 0.0235, 0.0085, 0.0127): 1.76,
        (0.0171, 0.0211, 0.0163, 0.0136, 0.0152): 0.55,
        (0.0010, 0.0047, 0.0017, 0.0001, 0.0004): 46.00,
    }
    for recalls, printed in table.items():
        assert round(imbalance(torch.tensor(recalls, dtype=torch.float64)), 2) == printed


@given(st.integers(2, 8), st.integers(0, 1000), st.floats(0.1, 5), st.floats(0.5, 10))
def test_warm_up_rises_with_alpha_and_rounds_and_falls_with_beta_and_loss(k, seed, alpha, beta):
    p = softened_losses(rows(k, 1, seed)[:, 0], 1.0)
    w = warm_up(p, 3, alpha, beta)
    assert bool((w > 0).all())
    assert bool((w <= 1).all())
    assert bool((warm_up(p, 3, 1.5 * alpha, beta) >= w).all())
    assert bool((warm_up(p, 4, alpha, beta) >= w).all())
    assert bool((warm_up(p, 3, alpha, 1.5 * beta) <= w).all())
    harder_first = w[p.argsort(descending=True)]
    assert bool((harder_first.diff() >= 0).all())


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 1000))
def test_weights_of_a_client_sum_to_one_and_its_own_is_never_damped(k, d, seed):
    s = attention(inner_products(rows(k, d, seed)))
    w = warm_up(softened_losses(rows(k, 1, seed + 1)[:, 0], 0.05), 0, 0.7, 5.0)
    raw = dynamic_weights(s, w)
    torch.testing.assert_close(raw.diagonal(), torch.ones(k, dtype=torch.float64))
    normal = row_normalised(raw)
    torch.testing.assert_close(normal.sum(1), torch.ones(k, dtype=torch.float64))
    assert bool((normal.diagonal() >= normal.max(1).values - 1e-12).all())


def test_shifted_similarity_is_in_the_unit_interval_and_symmetric():
    adapters = torch.cat([rows(3, 4, 0), -rows(3, 4, 0)])
    s = attention(inner_products(adapters))
    assert bool(((s >= -1e-12) & (s <= 1 + 1e-12)).all())
    torch.testing.assert_close(s, s.T)
    assert float(s[0, 3]) == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(
        cosine_similarity(inner_products(adapters)), torch.from_numpy(_cosine(adapters.numpy()))
    )


def _cosine(array):
    from sklearn.metrics.pairwise import cosine_similarity as sklearn_cosine

    return sklearn_cosine(array)


def test_equal_clients_without_difficulty_are_averaged_as_in_fedavg():
    adapters = rows(1, 5, 0).expand(4, -1) + 1e-9 * rows(4, 5, 1)
    w = warm_up(torch.zeros(4, dtype=torch.float64), 0, 0.7, 5.0)  # 0 difficulty: warm at once
    mixed = mix(adapters, row_normalised(dynamic_weights(attention(inner_products(adapters)), w)))
    torch.testing.assert_close(mixed, adapters.mean(0).expand(4, -1), rtol=0, atol=1e-12)


def test_all_rows_are_mixed_from_one_snapshot():
    adapters = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    half = torch.full((2, 2), 0.5, dtype=torch.float64)
    assert mix(adapters, half).tolist() == [[0.5], [0.5]]  # in place it would be .5 and .75


def test_the_order_of_clients_does_not_matter():
    adapters, losses = rows(5, 7, 0), rows(5, 1, 1)[:, 0]
    order = torch.tensor([3, 0, 4, 1, 2])

    def mixed(r, x):
        w = warm_up(softened_losses(x, 0.05), 1, 0.7, 5.0)
        return mix(r, row_normalised(dynamic_weights(attention(inner_products(r)), w)))

    torch.testing.assert_close(
        mixed(adapters, losses)[order], mixed(adapters[order], losses[order])
    )


def test_sizes_weight_the_peers():
    weights = row_normalised(torch.ones(2, 2), torch.tensor([1, 3]))
    assert weights.tolist() == [[0.25, 0.75], [0.25, 0.75]]


def test_cosines_that_cancel_are_refused_by_name():
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    weights = dynamic_weights(attention(inner_products(opposite), "cosine"), torch.ones(2))
    with pytest.raises(UserError, match="similarity shifted"):
        row_normalised(weights)


def test_a_zero_adapter_is_similar_to_nobody_and_not_nan():
    found = cosine_similarity(inner_products(torch.tensor([[0.0, 0.0], [1.0, 0.0]])))
    assert found[0].tolist() == [0.0, 0.0]
