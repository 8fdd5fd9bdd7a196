"""Full-ranking metrics against a naive float64 loop and torchmetrics' retrieval metrics."""

import math
import time
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import retrieval

from coterie.core.metrics.as_torchmetrics import FullRanking
from coterie.core.metrics.ranking import RankingMetrics, ranking_metrics, top_k
from coterie.core.tensors.stacked import Ragged

NAMES = ("ndcg", "recall", "hr", "mrr")


def naive(scores: list[float], excluded: set[int], targets: list[int], k: int) -> list[float]:
    """One client by the definitions, in Python floats."""
    if not targets:
        return [math.nan] * 4
    order = sorted(set(range(len(scores))) - excluded, key=lambda i: (-scores[i], i))[:k]
    hits = [place for place, item in enumerate(order) if item in targets]
    dcg = sum(1 / math.log2(place + 2) for place in hits)
    ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(targets))))
    first = 1 / (hits[0] + 1) if hits else 0.0
    return [dcg / ideal, len(hits) / len(targets), float(bool(hits)), first]


def naive_table(scores: Tensor, excluded: list, targets: list, k: int) -> Tensor:
    rows = zip(scores.tolist(), excluded, targets, strict=True)
    values = [naive(score, set(out), list(find), k) for score, out, find in rows]
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 4)


def stacked(found: RankingMetrics) -> Tensor:
    return torch.stack([getattr(found, name) for name in NAMES], dim=1)


def same(a: Tensor, b: Tensor, atol: float = 1e-12) -> bool:
    return torch.allclose(a, b, rtol=0, atol=atol, equal_nan=True)


@st.composite
def problems(draw: st.DrawFn):
    """Scores from few values (many ties), disjoint excluded and target items, any k."""
    n_items = draw(st.integers(1, 12))
    n_clients = draw(st.integers(0, 6))
    levels = draw(st.sampled_from([1, 2, 3, 1000]))
    score = st.integers(0, levels - 1).map(lambda level: level / 7 - 1)
    role = st.sampled_from(["out", "find", "rest"])
    row = st.lists(st.tuples(score, role), min_size=n_items, max_size=n_items)
    table = draw(st.lists(row, min_size=n_clients, max_size=n_clients))
    scores = torch.tensor([[s for s, _ in r] for r in table]).reshape(n_clients, n_items)
    rows = {
        name: [[i for i, (_, role) in enumerate(r) if role == name] for r in table]
        for name in ("out", "find")
    }
    return scores, rows["out"], rows["find"], draw(st.integers(1, 14))


@given(problems())
@settings(max_examples=80, deadline=None)
def test_equals_naive_loop(problem) -> None:
    scores, out, find, k = problem
    expected = naive_table(scores, out, find, k)
    excluded = Ragged.from_lists(out)
    for left_out in (excluded, excluded.mask(scores.shape[1])):
        found = ranking_metrics(scores, Ragged.from_lists(find), k, left_out)
        assert same(stacked(found), expected)


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_clients_do_not_depend_on_their_chunk(problem, random) -> None:
    scores, out, find, k = problem
    whole = stacked(ranking_metrics(scores, Ragged.from_lists(find), k, Ragged.from_lists(out)))
    order = list(range(len(find)))
    random.shuffle(order)
    cut = random.randint(0, len(order))
    for part in (order[:cut], order[cut:]):
        targets = Ragged.from_lists([find[c] for c in part])
        excluded = Ragged.from_lists([out[c] for c in part])
        piece = stacked(ranking_metrics(scores[part], targets, k, excluded))
        assert same(piece, whole[part])


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_renumbering_items_changes_nothing_without_ties(problem, random) -> None:
    scores, out, find, k = problem
    n_items = scores.shape[1]
    scores = scores + torch.arange(n_items) * 1e-3  # breaks every tie
    new = list(range(n_items))
    random.shuffle(new)
    before = ranking_metrics(scores, Ragged.from_lists(find), k, Ragged.from_lists(out))
    moved = torch.empty_like(scores)
    moved[:, new] = scores
    targets, excluded = ([[new[i] for i in row] for row in rows] for rows in (find, out))
    after = ranking_metrics(moved, Ragged.from_lists(targets), k, Ragged.from_lists(excluded))
    assert same(stacked(before), stacked(after))


@pytest.mark.parametrize("n_items", [40, 700, 1152, 1400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_wide_tables_equal_naive_loop(n_items: int, dtype: torch.dtype) -> None:
    """Each width takes another path through topk; bfloat16 has many ties."""
    rng = torch.Generator().manual_seed(n_items)
    scores = torch.randn(9, n_items, generator=rng).to(dtype)
    shuffled = [torch.randperm(n_items, generator=rng).tolist() for _ in range(9)]
    out, find = (
        [row[:10] for row in shuffled],
        [row[10 : 10 + 3 * c] for c, row in enumerate(shuffled)],
    )
    found = ranking_metrics(scores, Ragged.from_lists(find), 20, Ragged.from_lists(out))
    assert same(stacked(found), naive_table(scores, out, find, 20))


@pytest.mark.parametrize("k", [1, 5, 20])
def test_equals_torchmetrics(k: int) -> None:
    rng = torch.Generator().manual_seed(k)
    scores = torch.rand(50, 60, generator=rng)
    relevant = torch.rand(50, 60, generator=rng) < 0.1
    relevant[7] = False
    row, item = relevant.nonzero(as_tuple=True)
    metric = FullRanking(k)
    metric.update(scores, None, Ragged.from_pairs(row, item, 50))
    ours = metric.compute()
    classes = {
        "ndcg": retrieval.RetrievalNormalizedDCG,
        "recall": retrieval.RetrievalRecall,
        "hr": retrieval.RetrievalHitRate,
        "mrr": retrieval.RetrievalMRR,
    }
    for name, cls in classes.items():
        index = torch.arange(50).repeat_interleave(60)
        theirs = cls(top_k=k, empty_target_action="skip")
        value = theirs(scores.flatten(), relevant.flatten(), indexes=index)
        assert ours[f"{name}@{k}"].item() == pytest.approx(value.item(), abs=1e-6), name


def test_ties_rank_the_lower_item_number_first() -> None:
    assert top_k(torch.zeros(1, 3000), 4).tolist() == [[0, 1, 2, 3]]
    scores = torch.tensor([[1.0, 2.0, 2.0, -0.0, 0.0, 1.0]])
    assert top_k(scores, 6).tolist() == [[1, 2, 0, 5, 3, 4]]


def test_a_tie_across_the_end_of_the_list_is_broken_by_item_number() -> None:
    scores = torch.tensor([[0.5, 0.5, 0.9, 0.5]])
    found = [ranking_metrics(scores, Ragged.from_lists([[item]]), 2).hr.item() for item in range(4)]
    assert found == [1.0, 0.0, 1.0, 0.0]


def test_excluded_items_are_never_listed() -> None:
    scores = torch.tensor([[5.0, 4.0, 3.0]])
    assert top_k(scores, 3, Ragged.from_lists([[0, 2]])).tolist() == [[1, -1, -1]]
    assert top_k(scores, 2, torch.ones(1, 3, dtype=torch.bool)).tolist() == [[-1, -1]]


def test_an_excluded_target_is_a_miss() -> None:
    scores, targets = torch.tensor([[5.0, 4.0]]), Ragged.from_lists([[0, 1]])
    found = ranking_metrics(scores, targets, 2, Ragged.from_lists([[0]]))
    assert found.recall.item() == 0.5
    assert found.mrr.item() == 1.0


def test_perfect_list_has_ndcg_one_even_with_more_targets_than_places() -> None:
    scores = torch.arange(10.0).flip(0)[None]
    found = ranking_metrics(scores, Ragged.from_lists([list(range(8))]), 5)
    assert found.ndcg.item() == pytest.approx(1.0, abs=1e-15)
    assert found.recall.item() == 5 / 8


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(bad: float) -> None:
    scores = torch.zeros(9, 5)
    scores[3, 2] = scores[8, 0] = bad
    with pytest.raises(ValueError, match=r"2 of 9 clients are NaN or infinite \(rows 3, 8\)"):
        ranking_metrics(scores, Ragged.from_lists([[0]] * 9), 2)


def test_finite_scores_with_an_infinite_sum_are_ranked() -> None:
    assert top_k(torch.tensor([[3e38, 3.1e38, -1.0]]), 2).tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("scores", "excluded", "targets", "k", "message"),
    [
        (torch.zeros(2, 3), None, [[0]], 1, "targets has 1 rows for 2 clients"),
        (torch.zeros(1, 3), [[], []], [[0]], 1, "excluded has 2 rows for 1 clients"),
        (torch.zeros(1, 3), None, [[3]], 1, "outside 0..2"),
        (torch.zeros(1, 3), None, [[-1]], 1, "outside 0..2"),
        (torch.zeros(1, 3), [[7]], [[0]], 1, "outside 0..2"),
        (torch.zeros(1, 3), None, [[2, 0, 2]], 1, "item 2 is named twice .* row 0"),
        (torch.zeros(1, 3), None, [[0]], 0, "k must be at least 1"),
        (torch.zeros(3), None, [[0]], 1, "must be .* floats"),
        (torch.zeros(1, 3, dtype=torch.int64), None, [[0]], 1, "must be .* floats"),
    ],
)
def test_wrong_input_is_refused(scores, excluded, targets, k, message) -> None:
    left_out = None if excluded is None else Ragged.from_lists(excluded)
    with pytest.raises(ValueError, match=message):
        ranking_metrics(scores, Ragged.from_lists(targets), k, left_out)


def test_excluded_mask_of_wrong_shape_is_refused() -> None:
    for mask in (torch.zeros(3, dtype=torch.bool), torch.zeros(1, 3)):
        with pytest.raises(ValueError, match="excluded must be"):
            ranking_metrics(torch.zeros(1, 3), Ragged.from_lists([[0]]), 1, mask)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_empty_tables(shape: tuple[int, int]) -> None:
    targets = Ragged.from_lists([[] for _ in range(shape[0])])
    assert stacked(ranking_metrics(torch.zeros(shape), targets, 3)).shape == (shape[0], 4)


def test_metric_accumulates_clients_and_resets() -> None:
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(31, 50, generator=rng)
    find = [torch.randperm(50, generator=rng)[: c % 4].tolist() for c in range(31)]
    expected = naive_table(scores, [[]] * 31, find, 10)
    metric = FullRanking(10)
    for part in torch.arange(31).split(7):
        metric.update(scores[part], None, Ragged.from_lists([find[c] for c in part]))
    assert same(stacked(metric.per_client()), expected)
    means = metric.compute()
    assert list(means) == ["ndcg@10", "recall@10", "hr@10", "mrr@10"]
    assert torch.stack(list(means.values())).tolist() == pytest.approx(
        expected.nanmean(0).tolist(), abs=1e-12
    )
    metric.reset()
    metric.update(scores[:4], None, Ragged.from_lists(find[:4]))
    assert metric.per_client().ndcg.numel() == 4


def test_metric_without_a_counted_client_is_nan() -> None:
    metric = FullRanking(3)
    metric.update(torch.zeros(2, 4), None, Ragged.from_lists([[], []]))
    assert all(value.isnan() for value in metric.compute().values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchmetrics warns of compute before update
        assert all(value.isnan() for value in FullRanking(3).compute().values())


def test_refused_chunk_leaves_the_metric_as_it_was() -> None:
    metric = FullRanking(1)
    metric.update(torch.tensor([[1.0, 0.0]]), None, Ragged.from_lists([[0]]))
    with pytest.raises(ValueError, match="NaN"):
        metric.update(torch.tensor([[math.nan, 0.0]]), None, Ragged.from_lists([[0]]))
    assert metric.compute()["hr@1"].item() == 1.0
    assert metric.per_client().hr.numel() == 1


def test_ml100k_sized_evaluation_takes_milliseconds() -> None:
    """587 clients x 1152 items, 5,870 targets; sorting all scores takes about 45 ms."""
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(587, 1152, generator=rng)
    shuffled = torch.rand(587, 1152, generator=rng).argsort(1)
    rows = torch.arange(587).repeat_interleave(10)
    targets = Ragged.from_pairs(rows, shuffled[:, :10].flatten(), 587)
    excluded = torch.zeros(587, 1152, dtype=torch.bool).scatter(1, shuffled[:, 10:90], True)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        ranking_metrics(scores, targets, 20, excluded)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.03
