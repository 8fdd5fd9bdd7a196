"""Partitions: complete, disjoint, of the sizes and the skew asked for; or an error, always soon."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.core.data.samples.partitions import (
    by_group,
    counts_with_margins,
    dirichlet,
    equal_sizes,
    log_normal_sizes,
    quantity_skew,
    shards,
    uniform,
)
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(7)
LABELS = torch.arange(6000) % 10
IMBALANCED = torch.repeat_interleave(torch.arange(5), torch.tensor([50, 150, 800, 1000, 2000]))

keys = st.integers(0, 2**31).map(Key.from_seed)
label_lists = st.lists(st.integers(-3, 5), min_size=30, max_size=200).map(torch.tensor)


def counts_of(rows, labels):
    """(C, K) numbers of samples, counted one by one."""
    table = np.zeros((len(rows), int(labels.max()) + 1), dtype=int)
    for client, row in enumerate(rows.tolists()):
        for sample in row:
            table[client, labels[sample]] += 1
    return table


def skew(rows, labels):
    """Mean distance in total variation between a client's class ratios and the prior."""
    table = counts_of(rows, labels)
    prior = np.bincount(labels, minlength=table.shape[1]) / len(labels)
    ratios = table / table.sum(1, keepdims=True)
    return np.abs(ratios - prior).sum(1).mean() / 2


def complete(rows, n):
    return sorted(rows.values.tolist()) == list(range(n))


SCHEMES = {
    "uniform": lambda labels, n_clients, key: uniform(len(labels), n_clients, key),
    "by class": lambda labels, n_clients, key: dirichlet(labels, n_clients, 0.5, key, min_size=0),
    "equal": lambda labels, n_clients, key: quantity_skew(labels, n_clients, 0.3, 0.0, key),
    "quantity": lambda labels, n_clients, key: quantity_skew(labels, n_clients, 0.3, 1.0, key),
    "shards": lambda labels, n_clients, key: shards(labels, n_clients, key, per_client=2),
}


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())
@given(labels=label_lists, n_clients=st.integers(1, 15), key=keys)
@settings(max_examples=25, deadline=None)
def test_every_sample_is_dealt_once_and_the_key_alone_decides(scheme, labels, n_clients, key):
    rows = scheme(labels, n_clients, key)
    assert len(rows) == n_clients
    assert complete(rows, len(labels))
    assert all(row == sorted(row) for row in rows.tolists())
    again = scheme(labels, n_clients, key)
    assert torch.equal(rows.values, again.values)
    assert torch.equal(rows.offsets, again.offsets)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())
def test_another_key_deals_otherwise(scheme):
    one, other = (scheme(LABELS, 20, Key.from_seed(seed)).values for seed in (1, 2))
    assert not torch.equal(one, other)


@given(
    labels=label_lists,
    parts=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    alpha=st.floats(1e-6, 1e12),
    key=keys,
)
@settings(max_examples=50, deadline=None)
def test_sizes_are_met_exactly_for_any_alpha(labels, parts, alpha, key):
    sizes = torch.tensor(parts)
    if sizes.sum() > len(labels):
        with pytest.raises(UserError, match="sizes"):
            dirichlet(labels, len(parts), alpha, key, sizes=sizes)
        return
    rows = dirichlet(labels, len(parts), alpha, key, sizes=sizes)
    assert rows.lengths.tolist() == parts
    assert len(set(rows.values.tolist())) == sum(parts)


@pytest.mark.parametrize("labels", [LABELS, IMBALANCED], ids=["balanced", "imbalanced"])
@pytest.mark.parametrize(
    ("equal", "alphas"),
    [(True, (0.01, 0.1, 1.0, 10.0, 1e6)), (False, (0.2, 1.0, 10.0, 1e6))],
    ids=["equal sizes", "by class"],
)
def test_skew_grows_as_alpha_shrinks_and_vanishes_as_it_grows(labels, equal, alphas):
    sizes = equal_sizes(len(labels), 20) if equal else None
    skews = [
        skew(dirichlet(labels, 20, alpha, KEY, sizes=sizes, min_size=1), labels) for alpha in alphas
    ]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > (0.5 if equal else 0.3)
    assert skews[-1] < 0.02


def test_class_ratios_of_equal_parts_follow_the_dirichlet_distribution():
    # A class has a Beta distributed share; 1000 clients, so that margins bend the ratios little.
    n_classes, alpha, n_clients, size = 4, 0.5, 1000, 200
    labels = torch.arange(n_clients * size) % n_classes
    rows = dirichlet(labels, n_clients, alpha, KEY, sizes=equal_sizes(len(labels), n_clients))
    ratios = counts_of(rows, labels) / size
    beta = stats.beta(alpha, (n_classes - 1) * alpha)
    for share in ratios.T:
        assert stats.kstest(share + 0.5 / size, beta.cdf).statistic < 0.08
    variance = (1 / n_classes) * (1 - 1 / n_classes) / (n_classes * alpha + 1)
    np.testing.assert_allclose(ratios.var(0).mean(), variance, rtol=0.05)


def test_the_part_of_the_data_that_sizes_leave_over_keeps_the_prior():
    rows = dirichlet(IMBALANCED, 10, 1e6, KEY, sizes=torch.full((10,), 100))
    expected = np.bincount(IMBALANCED) / len(IMBALANCED) * 100
    assert np.abs(counts_of(rows, IMBALANCED) - expected).max() < 2


def test_sizes_of_zero_make_empty_clients():
    rows = dirichlet(LABELS, 3, 0.3, KEY, sizes=torch.tensor([0, 6000, 0]))
    assert rows.lengths.tolist() == [0, 6000, 0]


def test_divided_classes_leave_no_client_below_the_least_size():
    rows = dirichlet(LABELS, 50, 0.3, KEY, min_size=20)
    assert int(rows.lengths.min()) >= 20
    assert len(rows.lengths.unique()) > 5


def test_samples_of_a_class_are_dealt_at_random():
    first, second = (dirichlet(LABELS, 2, 1e6, Key.from_seed(seed)) for seed in (0, 1))
    shared = set(first.tolists()[0]) & set(second.tolists()[0])
    assert abs(len(shared) - 1500) < 150  # half of 3000, were they independent


def test_margins_hold_and_rounding_stays_within_one_of_the_fit():
    rng = np.random.default_rng(0)
    ratios = rng.dirichlet(np.full(12, 0.7), size=30)
    rows = rng.integers(0, 60, 30)
    columns = rng.multinomial(rows.sum(), rng.dirichlet(np.full(12, 5.0)))
    counts = counts_with_margins(np.log(ratios), rows, columns)
    assert counts.min() >= 0
    assert counts.sum(1).tolist() == rows.tolist()
    assert counts.sum(0).tolist() == columns.tolist()
    fit = ratios * rows[:, None]
    for _ in range(3000):
        fit *= (columns / fit.sum(0))[None]
        fit *= (rows / np.maximum(fit.sum(1), 1e-300))[:, None]
    assert np.abs(counts - fit).max() < 1.5


def test_margins_of_different_totals_are_refused():
    with pytest.raises(ValueError, match="totals"):
        counts_with_margins(np.zeros((1, 1)), np.array([3]), np.array([4]))


@given(
    n_clients=st.integers(1, 40),
    spare=st.integers(0, 300),
    least=st.integers(0, 4),
    sigma=st.floats(0, 1e4),
    key=keys,
)
@settings(max_examples=50, deadline=None)
def test_log_normal_sizes_sum_to_all_and_none_is_below_the_least(
    n_clients, spare, least, sigma, key
):
    n = n_clients * least + spare + (least == 0)
    sizes = log_normal_sizes(n, n_clients, sigma, key, min_size=least)
    assert int(sizes.sum()) == n
    assert int(sizes.min()) >= least


def test_log_normal_sizes_have_the_spread_asked_for():
    sizes = log_normal_sizes(10**7, 2000, 0.8, KEY).double()
    assert sizes.log().std() == pytest.approx(0.8, rel=0.05)
    skewness = ((sizes.log() - sizes.log().mean()) / sizes.log().std()).pow(3).mean()
    assert abs(float(skewness)) < 0.2


def test_without_spread_quantity_skew_is_the_scheme_of_equal_parts():
    equal = dirichlet(LABELS, 20, 0.3, KEY, sizes=equal_sizes(6000, 20))
    none, little = (quantity_skew(LABELS, 20, 0.3, sigma, KEY) for sigma in (0.0, 1e-3))
    assert torch.equal(none.values, equal.values)
    difference = counts_of(none, LABELS) - counts_of(little, LABELS)
    assert np.abs(difference).max() <= 3


def test_shards_give_each_client_few_classes_and_equal_parts():
    rows = shards(LABELS, 100, KEY, per_client=2)
    assert rows.lengths.unique().tolist() == [60]
    classes = (counts_of(rows, LABELS) > 0).sum(1)
    assert classes.max() <= 2
    assert (classes == 1).any()
    assert (classes == 2).any()


def test_shards_that_do_not_divide_the_samples_differ_by_one_each():
    rows = shards(torch.arange(101) % 3, 7, KEY, per_client=3)
    assert complete(rows, 101)
    assert int(rows.lengths.max() - rows.lengths.min()) <= 3


def test_groups_become_clients_and_small_ones_stay_out():
    groups = torch.tensor([40, 7, 7, 40, 40, 9, -2, -2])
    assert by_group(groups, KEY).tolists() == [[6, 7], [1, 2], [5], [0, 3, 4]]
    assert by_group(groups, KEY, min_size=2).tolists() == [[6, 7], [1, 2], [0, 3, 4]]
    chosen = {
        tuple(by_group(groups, Key.from_seed(seed), min_size=3, n_clients=1).values.tolist())
        for seed in range(5)
    }
    assert chosen == {(0, 3, 4)}


def test_more_groups_keep_those_of_fewer():
    groups = torch.arange(200) // 4
    few, many = (by_group(groups, KEY, n_clients=count).tolists() for count in (10, 30))
    assert {tuple(row) for row in few} < {tuple(row) for row in many}


BAD = {
    "alpha": lambda: dirichlet(LABELS, 10, 0.0, KEY),
    "alpha is nan": lambda: dirichlet(LABELS, 10, float("nan"), KEY),
    "alpha is inf": lambda: dirichlet(LABELS, 10, float("inf"), KEY, sizes=torch.ones(10).long()),
    "min_size": lambda: dirichlet(LABELS, 100, 0.3, KEY, min_size=61),
    "no division with alpha": lambda: dirichlet(LABELS, 500, 0.01, KEY, min_size=10),
    "n_clients is 0": lambda: dirichlet(LABELS, 0, 0.3, KEY),
    "0 samples": lambda: dirichlet(LABELS[:0], 1, 0.3, KEY, min_size=0),
    "sum to 6001": lambda: dirichlet(LABELS, 2, 0.3, KEY, sizes=torch.tensor([6000, 1])),
    "sizes from -1": lambda: dirichlet(LABELS, 2, 0.3, KEY, sizes=torch.tensor([5, -1])),
    "one size a client": lambda: dirichlet(LABELS, 3, 0.3, KEY, sizes=torch.tensor([1, 1])),
    "6000 samples cannot give 1 to each of 6001": lambda: uniform(6000, 6001, KEY),
    "sigma": lambda: quantity_skew(LABELS, 10, 0.3, -0.1, KEY),
    "sigma is nan": lambda: quantity_skew(LABELS, 10, 0.3, float("nan"), KEY),
    "from 0 to 1e.06": lambda: quantity_skew(LABELS, 10, 0.3, 1e308, KEY),
    "min_size is -1": lambda: quantity_skew(LABELS, 10, 0.3, 0.1, KEY, min_size=-1),
    "lower n_clients or per_client": lambda: shards(LABELS, 3001, KEY),
    "per_client is 0": lambda: shards(LABELS, 3, KEY, per_client=0),
    "0 of 3 groups have 9 samples": lambda: by_group(torch.arange(3), KEY, min_size=9),
    "5 clients are asked for": lambda: by_group(torch.arange(3), KEY, n_clients=5),
    "n_clients is 0: choose 1 or more, or none": lambda: by_group(
        torch.arange(3), KEY, n_clients=0
    ),
}


@pytest.mark.parametrize(("words", "request_"), BAD.items(), ids=BAD.keys())
def test_a_request_that_cannot_be_met_ends_in_one_line(words, request_):
    started = time.process_time()
    with pytest.raises(UserError, match=words) as error:
        request_()
    assert "\n" not in str(error.value)
    assert time.process_time() - started < 10
