"""The attack on uploads with a known answer, and its metrics against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from coterie.core.privacy.attack import (
    SCORERS,
    attack_curve,
    change_norm,
    direction,
    measure,
    plot_curve,
    touched,
)
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import DenseRows, FactoredRows
from coterie.core.tensors.stacked import Ragged

C, N, D, POSITIVES, NEGATIVES = 30, 300, 8, 12, 48


def keys(count: int) -> Key:
    return Key.from_seed(1).fold(torch.arange(count))


def one_batch(trained: bool, seed: int = 0) -> tuple[FactoredRows, Tensor, Ragged, Ragged]:
    """One SGD step of logistic matrix factorisation by hand: change = lr (y - sigma) v.

    Untrained: tiny vectors, every residual is about a half. Trained: the public rows hold the
    clients' tastes, most items score low, so positives and negatives have residuals of all sizes.
    """
    draw = torch.Generator().manual_seed(seed)
    scale = 1.0 if trained else 0.01
    vectors = scale * torch.randn(C, D, generator=draw)
    table = scale * torch.randn(N, D, generator=draw)
    if trained:  # one coordinate says "not for most": every score is shifted down
        vectors[:, 0], table[:, 0] = 1.5, -1.5 + 0.3 * table[:, 0]
    score = vectors @ table.T
    order = torch.argsort(score + 2 * torch.randn(C, N, generator=draw), 1, descending=True)
    positive = order[:, :POSITIVES]
    rest = order[:, POSITIVES:][:, torch.randperm(N - POSITIVES, generator=draw)]
    negative = rest[:, :NEGATIVES]
    residual = torch.zeros(C, N).scatter_(1, positive, 1.0)
    used = torch.zeros(C, N).scatter_(1, torch.cat([positive, negative], 1), 1.0)
    residual = (residual - score.sigmoid()) * used
    uploads = FactoredRows(torch.arange(C), 5.0 * residual, vectors, C)
    seen = Ragged.from_lists([sorted(row) for row in torch.cat([positive, negative], 1).tolist()])
    return uploads, table, Ragged.from_lists(positive.tolist()), seen


@pytest.mark.parametrize("trained", [False, True])
def test_without_noise_the_direction_tells_every_positive(trained: bool) -> None:
    uploads, table, positives, seen = one_batch(trained)
    for form in (uploads, uploads.wire(), DenseRows(uploads.dense())):
        for candidates in (None, seen):
            report = measure(form, table, positives, candidates)
            assert (report.values["direction"]["auc"] == 1.0).all()
            assert (report.values["direction"]["precision"] == 1.0).all()
            assert (report.values["direction"]["recall"] == 1.0).all()


def test_the_papers_guess() -> None:
    uploads, table, positives, seen = one_batch(trained=False)
    share = POSITIVES / (POSITIVES + NEGATIVES)
    everywhere = measure(uploads, table, positives).means()
    # Each touched item is positive with n+ / (n+ + n-); 240 untouched items are told apart.
    assert everywhere["touched/precision"] == pytest.approx(share)
    assert everywhere["touched/recall"] == pytest.approx(2 * share)
    assert everywhere["touched/auc"] == pytest.approx((240 + 48 / 2) / 288)
    among = measure(uploads, table, positives, seen).means()
    for metric, chance in (("auc", 0.5), ("precision", share), ("recall", 2 * share)):
        assert among[f"touched/{metric}"] == pytest.approx(chance)
        assert among[f"chance/{metric}"] == pytest.approx(chance)
    assert everywhere["chance/precision"] == pytest.approx(POSITIVES / N)


def test_noise_takes_the_attack_to_chance() -> None:
    uploads, table, positives, seen = one_batch(trained=True)
    scales = [0.0, 0.3, 1.0, 300.0]
    curve = attack_curve(uploads, table, positives, scales, keys(C), candidates=seen)
    direction_auc = [curve[scale].means()["direction/auc"] for scale in scales]
    assert direction_auc[0] == 1.0
    assert direction_auc == sorted(direction_auc, reverse=True)
    last = curve[300.0].means()
    margin = 4 * math.sqrt(1 / (12 * C * POSITIVES))  # of a mean of C Mann-Whitney statistics
    for name in SCORERS:
        assert last[f"{name}/auc"] == pytest.approx(0.5, abs=margin)
        chance = last["chance/precision"]
        assert last[f"{name}/precision"] == pytest.approx(chance, abs=0.1)
    assert (curve[0.3].values["touched"]["auc"] == 0.5).all()  # all rows are sent


def test_gaussian_noise_of_little_scale_leaves_the_attack_whole() -> None:
    uploads, table, positives, _ = one_batch(trained=True)
    curve = attack_curve(uploads, table, positives, [1e-6], keys(C), noise="gaussian")
    assert curve[1e-6].means()["direction/precision"] > 0.95


@pytest.mark.parametrize("seed", range(3))
def test_metrics_against_sklearn_and_a_loop(seed: int) -> None:
    uploads, table, positives, _ = one_batch(trained=True, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    candidates = (torch.rand(C, N, generator=draw) < 0.4) | positives.mask(N)
    owner, item = candidates.nonzero(as_tuple=True)
    report = measure(uploads, table, positives, Ragged.from_pairs(owner, item, C))
    change = uploads.dense()
    scorers = {"touched": touched, "norm": change_norm, "direction": direction}
    for name, score in scorers.items():
        scores = score(change, table)
        for client in range(C):
            mine = scores[client][candidates[client]].double().numpy()
            true = positives.mask(N)[client][candidates[client]].numpy()
            got = {metric: report.values[name][metric][client] for metric in report.chance}
            assert got["auc"] == pytest.approx(roc_auc_score(true, mine))
            if len(set(mine)) == len(mine):  # no ties: the plain definitions
                best = np.argsort(-mine)
                assert got["precision"] == pytest.approx(true[best[:POSITIVES]].mean())
                found = true[best[: 2 * POSITIVES]].sum() / POSITIVES
                assert got["recall"] == pytest.approx(found)


def test_ties_count_as_their_expectation() -> None:
    change = torch.zeros(1, 6, 2)
    change[0, :4] = 1.0  # rows 0..3 tie; the positives are 0, 1, 5
    report = measure(DenseRows(change), torch.zeros(6, 2), Ragged.from_lists([[0, 1, 5]]))
    scores = np.array([1, 1, 1, 1, 0, 0])
    draws = np.random.default_rng(0).random((20_000, 6))
    top = np.argsort(-(scores + 1e-3 * draws), axis=1)[:, :3]
    expected = np.isin(top, [0, 1, 5]).sum(1).mean() / 3
    assert report.values["touched"]["precision"][0] == pytest.approx(expected, abs=0.01)


def test_clients_without_a_question_are_left_out_of_the_means() -> None:
    uploads, table, positives, _ = one_batch(trained=False)
    lists = positives.tolists()
    lists[0], lists[1] = [], list(range(N))
    report = measure(uploads, table, Ragged.from_lists(lists))
    assert np.isnan(report.values["direction"]["auc"]).tolist() == [True, True] + [False] * (C - 2)
    assert report.means()["direction/auc"] == 1.0
    nobody = measure(uploads.take(torch.tensor([0])), table, Ragged.from_lists([[]]))
    assert math.isnan(nobody.means()["direction/auc"])


def test_uploads_that_changed_nothing_are_at_chance() -> None:
    report = measure(
        DenseRows(torch.zeros(2, N, D)), torch.zeros(N, D), Ragged.from_lists([[1], [2, 3]])
    )
    for name in SCORERS:
        assert (report.values[name]["auc"] == 0.5).all()


def test_results_do_not_depend_on_the_number_of_clients_at_once() -> None:
    uploads, table, positives, seen = one_batch(trained=True)
    many = torch.arange(C).repeat(4)  # more than one block
    wide = uploads.wire().take(many)
    report = measure(wide, table, positives.take(many), seen.take(many))
    once = measure(uploads, table, positives, seen)
    for name in SCORERS:
        np.testing.assert_allclose(report.values[name]["auc"], np.tile(once.values[name]["auc"], 4))


def test_sizes_that_do_not_match_are_refused() -> None:
    uploads, table, positives, _ = one_batch(trained=False)
    with pytest.raises(ValueError, match="30 uploads"):
        measure(uploads, table, positives.take(torch.tensor([0])))
    with pytest.raises(ValueError, match="width"):
        measure(uploads, table[:, :2], positives)


def test_the_plot_is_a_png_and_leaves_nothing_half_written(tmp_path) -> None:
    uploads, table, positives, _ = one_batch(trained=False)
    curve = attack_curve(uploads, table, positives, [0.0, 0.1], keys(C))
    path = plot_curve(curve, tmp_path / "attack.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert {file.name for file in tmp_path.iterdir()} == {"attack.png", "attack.svg"}
    rows = curve[0.0].rows()
    assert [row["scorer"] for row in rows] == [*SCORERS, "chance"]
    assert rows[2]["auc"] == 1.0
