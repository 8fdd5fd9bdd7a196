"""Metrics over rated cells against naive loops, hand-worked numbers, sklearn and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, ndcg_score
from torchmetrics import MeanSquaredError
from torchmetrics.classification import BinaryAccuracy
from torchmetrics.retrieval import RetrievalMAP, RetrievalNormalizedDCG

from coterie.core.metrics.as_torchmetrics import RatedRanking
from coterie.core.metrics.rated_cells import (
    average_precision,
    map_of_batches,
    ndcg,
    rmse,
    rmse_of_batches,
    sign_accuracy,
)
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

# Few distinct scores, so that ties are frequent.
CELL = st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), st.booleans())
ROWS = st.lists(
    st.dictionaries(st.integers(0, 30), CELL, max_size=8).map(lambda row: list(row.items())),
    min_size=1,
    max_size=6,
)


def tensors(rows):
    """Scores, relevance and columns of rows of (column, (score, relevant)), in the order given."""
    flat = [cell for row in rows for cell in row]
    columns = Ragged.from_lists([[column for column, _ in row] for row in rows])
    scores = torch.tensor([score for _, (score, _) in flat], dtype=torch.float32)
    return scores, torch.tensor([liked for _, (_, liked) in flat], dtype=torch.bool), columns


def ranked(row):
    """Relevance of a row's cells, best first; the lower column first among equals."""
    return [liked for _, (_, liked) in sorted(row, key=lambda cell: (-cell[1][0], cell[0]))]


def naive_ap(row, k):
    top = ranked(row)[:k]
    precisions = [sum(top[: i + 1]) / (i + 1) for i, liked in enumerate(top) if liked]
    return sum(precisions) / len(precisions) if precisions else 0.0


def naive_ndcg(row, k):
    def gain(order):
        return sum(liked / math.log2(i + 2) for i, liked in enumerate(order[:k]))

    best = gain(sorted(ranked(row), reverse=True))
    return gain(ranked(row)) / best if best else 0.0


def wanted(rows, naive, k, empty):
    """Values of all rows by a loop."""

    def counts(row):
        return bool(row) if empty == "zero" else any(ranked(row))

    return [naive(row, k) if counts(row) else math.nan for row in rows]


@pytest.mark.parametrize("empty", ["skip", "zero"])
@pytest.mark.parametrize(("metric", "naive"), [(average_precision, naive_ap), (ndcg, naive_ndcg)])
@given(rows=ROWS, k=st.integers(1, 10))
@settings(max_examples=40)
def test_rows_equal_a_naive_loop(metric, naive, empty, rows, k):
    found = metric(*tensors(rows), k, empty)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(wanted(rows, naive, k, empty), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("metric", [average_precision, ndcg])
@given(rows=ROWS, data=st.data())
@settings(max_examples=40)
def test_the_order_of_cells_changes_nothing_even_where_scores_are_tied(metric, rows, data):
    mixed = [data.draw(st.permutations(row)) for row in rows]
    one, other = (metric(*tensors(given), 3, "zero").nan_to_num(-1) for given in (rows, mixed))
    assert torch.equal(one, other)


def test_average_precision_of_a_hand_worked_list():
    # Relevant at places 1, 3 and 6: (1 + 2/3 + 3/6) / 3; at 5 the third is not among them.
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    liked = torch.tensor([1, 0, 1, 0, 0, 1])
    rows = Ragged.from_lists([[0, 1, 2, 3, 4, 5]])
    assert average_precision(scores, liked, rows, 6).item() == pytest.approx((1 + 2 / 3 + 0.5) / 3)
    assert average_precision(scores, liked, rows, 5).item() == pytest.approx((1 + 2 / 3) / 2)


def test_a_row_whose_relevant_cells_are_beyond_the_list_counts_as_zero():
    rows, liked = Ragged.from_lists([[0, 1, 2]]), torch.tensor([False, False, True])
    scores = torch.tensor([3.0, 2.0, 1.0])
    assert average_precision(scores, liked, rows, 2).item() == 0
    assert ndcg(scores, liked, rows, 2).item() == 0


def drawn(n_rows=60, most=25):
    """Rows of untied scores, relevance and columns, some of them empty."""
    key = Key.from_seed(5)
    lengths = key.fold("length").integers(most, torch.arange(n_rows))
    n = int(lengths.sum())
    columns = Ragged.from_lengths(torch.arange(n), lengths)
    return key.normal(n), key.fold("liked").uniform(n) < 0.4, columns


def test_long_lists_equal_sklearn():
    scores, liked, rows = drawn()
    ap, gain = (metric(scores, liked, rows, 1000) for metric in (average_precision, ndcg))
    for row, (score, like) in enumerate(
        zip(scores.split(rows.lengths.tolist()), liked.split(rows.lengths.tolist()), strict=True)
    ):
        if len(score) > 1 and bool(like.any()):
            assert ap[row].item() == pytest.approx(average_precision_score(like, score))
            assert gain[row].item() == pytest.approx(ndcg_score([like.numpy()], [score.numpy()]))
    assert int((~ap.isnan()).sum()) > 40


def test_graded_gains_equal_sklearn():
    scores, _, rows = drawn()
    gains = Key.from_seed(6).integers(6, torch.arange(len(scores)))
    found = ndcg(scores, gains, rows, 10)
    parts = zip(
        scores.split(rows.lengths.tolist()), gains.split(rows.lengths.tolist()), strict=True
    )
    for row, (score, gain) in enumerate(parts):
        if len(score) > 1 and bool(gain.any()):
            best = ndcg_score([gain.numpy()], [score.numpy()], k=10)
            assert found[row].item() == pytest.approx(best)


@pytest.mark.parametrize(("empty", "theirs"), [("skip", "skip"), ("zero", "neg")])
def test_means_equal_torchmetrics(empty, theirs):
    scores, liked, rows = drawn()
    metric = RatedRanking(10, empty)
    metric.update(scores, liked, rows)
    for name, kind in (("map@10", RetrievalMAP), ("ndcg@10", RetrievalNormalizedDCG)):
        reference = kind(empty_target_action=theirs, top_k=10)
        # Theirs takes what has a score of 0 or less for irrelevant.
        expected = reference(scores.exp(), liked, indexes=rows.rows)
        assert metric.compute()[name].item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("empty", ["skip", "zero"])
@given(rows=ROWS, cut=st.integers(0, 6))
@settings(max_examples=40)
def test_the_metric_is_the_mean_over_rows_whatever_the_chunks(empty, rows, cut):
    metric = RatedRanking(3, empty)
    for part in (rows[:cut], rows[cut:]):
        metric.update(*tensors(part))
    for name, naive in (("map@3", naive_ap), ("ndcg@3", naive_ndcg)):
        known = [one for one in wanted(rows, naive, 3, empty) if not math.isnan(one)]
        mean = sum(known) / len(known) if known else math.nan
        assert metric.compute()[name].item() == pytest.approx(mean, nan_ok=True)
    assert len(metric.per_row()) == len(rows)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_is_added_and_the_mean_is_unknown_where_there_is_nothing():
    metric = RatedRanking()
    assert metric.compute()["map@10"].isnan()
    with pytest.raises(ValueError, match="NaN or infinite"):
        metric.update(torch.tensor([torch.nan]), torch.tensor([True]), Ragged.from_lists([[0]]))
    assert len(metric.per_row()) == 0


@pytest.mark.parametrize(
    ("scores", "k", "what"),
    [
        ([1.0, math.inf], 3, "NaN or infinite"),
        ([1.0], 3, "1 scores for 2 candidates"),
        ([1.0, 2.0], 0, "k must be at least 1"),
    ],
)
@pytest.mark.parametrize("metric", [average_precision, ndcg])
def test_impossible_input_is_refused(metric, scores, k, what):
    with pytest.raises(ValueError, match=what):
        metric(torch.tensor(scores), torch.ones(2), Ragged.from_lists([[0, 1]]), k)


def test_negative_gains_and_lists_of_no_length_are_refused():
    with pytest.raises(ValueError, match="negative"):
        ndcg(torch.ones(1), -torch.ones(1), Ragged.from_lists([[0]]), 3)
    with pytest.raises(ValueError, match="k must be"):
        RatedRanking(0)


def test_rmse_and_accuracy_are_those_of_torchmetrics_in_any_chunks():
    key = Key.from_seed(8)
    predicted, observed = key.normal(1000), key.fold("observed").normal(1000)
    theirs, accuracy = MeanSquaredError(squared=False), BinaryAccuracy()
    for part in (slice(0, 10), slice(10, 1000)):
        theirs.update(predicted[part], observed[part])
        accuracy.update((predicted[part] > 0).long(), (observed[part] > 0).long())
    assert rmse(predicted, observed) == pytest.approx(theirs.compute().item(), rel=1e-6)
    found = sign_accuracy(predicted, observed > 0)
    assert found == pytest.approx(accuracy.compute().item())
    assert found == pytest.approx(accuracy_score(observed > 0, predicted > 0))


def test_a_logit_of_zero_says_no():
    assert sign_accuracy(torch.zeros(4), torch.tensor([False, False, False, True])) == 0.75
    assert math.isnan(sign_accuracy(torch.empty(0), torch.empty(0)))
    assert math.isnan(rmse(torch.empty(0), torch.empty(0)))


@given(rows=ROWS, batch=st.integers(1, 7), k=st.integers(1, 9))
@settings(max_examples=40)
def test_batches_of_rows_equal_a_loop_over_batches(rows, batch, k):
    scores, liked, columns = tensors(rows)
    found = (
        rmse_of_batches(scores, liked, columns, batch),
        map_of_batches(scores, liked, columns, k, batch),
    )
    sums = np.zeros(3)  # cells, and both metrics weighted by them
    for start in range(0, len(rows), batch):
        part = [row for row in rows[start : start + batch] if row]
        errors = [(score - liked) ** 2 for row in part for _, (score, liked) in row]
        if errors:
            values = (1, math.sqrt(np.mean(errors)), np.mean([naive_ap(row, k) for row in part]))
            sums += len(errors) * np.array(values)
    expected = sums[1:] / sums[0] if sums[0] else [math.nan] * 2
    assert found == pytest.approx(tuple(expected), nan_ok=True)


def test_batched_averages_depend_on_the_batch_and_one_batch_is_the_whole():
    scores, liked, rows = drawn()
    observed = liked.float()
    assert rmse_of_batches(scores, observed, rows, 1000) == pytest.approx(rmse(scores, observed))
    assert rmse_of_batches(scores, observed, rows, 7) < rmse(scores, observed)
    mean = average_precision(scores, liked, rows, 10, "zero").nanmean().item()
    assert map_of_batches(scores, liked, rows, 10, 1000) == pytest.approx(mean)
    assert map_of_batches(scores, liked, rows, 10, 7) != pytest.approx(mean, abs=1e-6)
