"""Rules in place of a mean: beside Flower's strategies, numpy, scipy and loops; what they stand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean
from tests.core.few_rows import GROUPS, by_hand, factored, forms

from coterie.core.errors import UserError
from coterie.core.federation import rules
from coterie.core.federation.rules import Median, TrimmedMean, krum, squared_distances
from coterie.core.tensors.rows import DenseRows, TouchedRows
from coterie.core.tensors.stacked import Ragged

SHARES = [0.1, 0.2, 0.3, 0.45]


def drawn(n_clients: int, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(n_clients, 4, 3, generator=draw, dtype=torch.float64),
        "b": torch.randn(n_clients, 2, generator=draw, dtype=torch.float64),
    }


def flat(upload) -> np.ndarray:
    return np.concatenate([v.reshape(len(v), -1).numpy() for v in upload.values()], axis=1)


@pytest.mark.parametrize("n_clients", [1, 2, 3, 10, 11])
@pytest.mark.parametrize("share", SHARES)
def test_each_number_as_numpy_and_scipy_have_it(n_clients, share):
    for value in drawn(n_clients).values():
        array = value.numpy()
        np.testing.assert_array_equal(Median()(value), np.median(array, axis=0))
        expected = trim_mean(array, share, axis=0)
        np.testing.assert_allclose(TrimmedMean(share)(value), expected, rtol=1e-13, atol=1e-15)


def test_a_share_is_that_of_decimal_numbers():
    """.29 of 100 clients are 29; in binary the product is a little less."""
    assert 0.29 * 100 < 29
    values = torch.arange(100.0, dtype=torch.float64)[:, None] ** 2
    expected = sum(number**2 for number in range(29, 71)) / 42
    assert float(TrimmedMean(0.29)(values)) == pytest.approx(expected)


@pytest.mark.parametrize("n_clients", [6, 10, 23])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_krum_chooses_whom_flower_chooses(n_clients, share):
    pytest.importorskip("flwr")
    from flwr.app import ArrayRecord, RecordDict
    from flwr.serverapp.strategy.multikrum import select_multikrum

    upload, f = drawn(n_clients, n_clients), int(share * n_clients + 1e-9)
    records = [
        RecordDict({"arrays": ArrayRecord([v[c].numpy() for v in upload.values()])})
        for c in range(n_clients)
    ]
    for several, count in ((False, 1), (True, n_clients - f)):
        theirs = select_multikrum(records, f, count)
        places = sorted(next(i for i, r in enumerate(records) if r is one) for one in theirs)
        assert krum(upload, n_clients, share, several).tolist() == places


def test_median_and_trimmed_mean_are_flowers():
    pytest.importorskip("flwr")
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg

    upload = drawn(9)

    def replies():
        for c in range(9):
            arrays = ArrayRecord({n: Array(v[c].numpy()) for n, v in upload.items()})
            content = RecordDict({"a": arrays, "m": MetricRecord({"num-examples": 1})})
            yield SimpleNamespace(content=content, has_error=lambda: False)

    for strategy, rule in ((FedMedian(), Median()), (FedTrimmedAvg(beta=0.2), TrimmedMean(0.2))):
        arrays, _ = strategy.aggregate_train(1, list(replies()))
        for name, value in upload.items():
            np.testing.assert_allclose(rule(value), arrays[name].numpy(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("block", [1, 64, rules._BLOCK])
def test_distances_are_those_of_whole_uploads(block, monkeypatch):
    monkeypatch.setattr(rules, "_BLOCK", block)
    rows = factored([0, 1, 2, 0, 3, 3], 5)
    upload = {**drawn(5), "items": rows}
    whole = np.concatenate([flat(drawn(5)), by_hand(rows).reshape(5, -1).numpy()], axis=1)
    expected = ((whole[:, None] - whole[None]) ** 2).sum(2)
    np.testing.assert_allclose(squared_distances(upload, 5), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", [1, 30, rules._BLOCK])
@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.3)])
def test_rows_that_some_changed_and_others_did_not(rule, block, monkeypatch):
    """By a loop; rows of different numbers of changes are held together."""
    monkeypatch.setattr(rules, "_BLOCK", block)
    lists = [[0, 1, 4], [1], [1, 3, 4], [], [1, 4], [0, 1]]
    index = Ragged.from_lists(lists)
    draw = torch.Generator().manual_seed(8)
    values = torch.randn(index.values.numel(), 2, generator=draw, dtype=torch.float64)
    rows = TouchedRows(index, values, 6)
    tables, expected = rows.dense(), torch.zeros(6, 2, dtype=torch.float64)
    for row in range(6):
        who = [client for client, own in enumerate(lists) if row in own]
        if who:
            expected[row] = rule(tables[who, row]) * len(who) / 6
    torch.testing.assert_close(rule(rows).values[0], expected, rtol=1e-12, atol=1e-14)
    flat = tables.flatten(1).numpy()
    squares = ((flat[:, None] - flat[None]) ** 2).sum(2)
    np.testing.assert_allclose(squared_distances({"a": rows}, 6), squares, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", [1, 7, rules._BLOCK])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("form", [0, 1, 3])
@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.3), TrimmedMean(0.45)])
def test_a_row_is_compared_among_those_who_changed_it(group, form, rule, block, monkeypatch):
    """A loop over rows, times the share of clients who did."""
    monkeypatch.setattr(rules, "_BLOCK", block)
    rows = factored(*group)
    tables, wire, count = by_hand(rows), rows.wire(), group[1]
    expected = torch.zeros(tables.shape[1:], dtype=torch.float64)
    for row in range(tables.shape[1]):
        who = wire.index.rows[wire.index.values == row]
        if who.numel():
            expected[row] = rule(tables[who, row]) * who.numel() / count
    found = rule(forms(rows)[form])
    torch.testing.assert_close(found.values[0], expected, rtol=1e-12, atol=1e-14)


def test_whole_tables_are_compared_among_all():
    tables = drawn(7)["w"]
    found = Median()(DenseRows(tables))
    np.testing.assert_array_equal(found.values[0], np.median(tables.numpy(), axis=0))


@given(st.integers(0, 2**31), st.integers(5, 40), st.sampled_from(SHARES))
def test_a_minority_decides_no_number(seed, n_clients, share):
    """Whatever they send, the result lies between the smallest and largest honest value."""
    honest = drawn(n_clients, seed)["b"]
    f = int(share * n_clients + 1e-9)
    draw = torch.Generator().manual_seed(seed)
    lies = 10.0 ** torch.randint(0, 12, (f, 2), generator=draw).double()
    sent = torch.cat([lies * torch.randn(f, 2, generator=draw), honest[f:]])
    sent = sent[torch.randperm(n_clients, generator=draw)]
    for rule in (Median(), TrimmedMean(share)):
        found = rule(sent)
        assert bool((found >= honest[f:].min(0).values).all())
        assert bool((found <= honest[f:].max(0).values).all())


@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.2, 0.3]))
def test_the_order_of_clients_does_not_matter(seed, share):
    upload, order = drawn(11, seed), torch.randperm(11, generator=torch.Generator().manual_seed(1))
    shuffled = {name: value[order] for name, value in upload.items()}
    for name in upload:
        assert torch.equal(Median()(upload[name]), Median()(shuffled[name]))
        assert torch.equal(TrimmedMean(share)(upload[name]), TrimmedMean(share)(shuffled[name]))
    chosen = krum(upload, 11, share, several=True)
    assert order[krum(shuffled, 11, share, several=True)].sort().values.tolist() == chosen.tolist()


def test_krum_leaves_out_who_is_far_away():
    upload = {"w": torch.randn(10, 5, generator=torch.Generator().manual_seed(3))}
    upload["w"][[2, 5, 8]] += 40.0
    assert not {2, 5, 8} & set(krum(upload, 10, 0.3, several=True).tolist())
    assert krum(upload, 10, 0.3, several=False).item() not in (2, 5, 8)


def test_krum_says_when_there_are_too_few():
    with pytest.raises(UserError, match="among 4 clients with data: it takes 5"):
        krum(drawn(4), 4, 0.3, several=False)
    assert len(krum(drawn(5), 5, 0.3, several=True)) == 4


def test_nobody_changed_anything():
    rows = TouchedRows(Ragged.from_lists([[], []]), torch.zeros(0, 3), 4)
    assert Median()(rows).values.tolist() == torch.zeros(1, 4, 3).tolist()
    assert squared_distances({"a": rows}, 2).tolist() == [[0.0, 0.0], [0.0, 0.0]]
