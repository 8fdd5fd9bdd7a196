"""Places found by counting against a stable sort of all scores."""

import pytest
import torch
from torch import Tensor

from coterie.core.metrics import ranking
from coterie.core.metrics.ranking import blocks_of, copies_of, find_targets
from coterie.core.tensors.ordering import sorted_rows
from coterie.core.tensors.stacked import Ragged


def by_sorting(scores: Tensor, targets: list[list[int]], k: int, out: list[list[int]]) -> list[int]:
    found = []
    for row, wanted, gone in zip(scores.tolist(), targets, out, strict=True):
        order = sorted(set(range(len(row))) - set(gone), key=lambda i: (-row[i], i))[:k]
        found += [order.index(item) if item in order else k for item in wanted]
    return found


def problem(n_clients: int, n_items: int, levels: int, seed: int):
    """Scores, up to 12 targets and up to 30 excluded items a client, some of them targets."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (n_clients, n_items), generator=rng) / 7 - levels / 14
    shuffled = [torch.randperm(n_items, generator=rng).tolist() for _ in range(n_clients)]
    targets = [row[: c % 13] for c, row in enumerate(shuffled)]
    out = [row[c % 11 : c % 11 + c % 31] for c, row in enumerate(shuffled)]
    return scores, targets, out


@pytest.mark.parametrize("n_items", [1, 19, 20, 21, 119, 121, 240, 359, 361, 1000, 2003])
@pytest.mark.parametrize("levels", [1, 5, 60, 10**6])
@pytest.mark.parametrize("k", [1, 20])
def test_places_are_those_of_a_stable_sort(n_items, levels, k, monkeypatch):
    """Numbers of groups and odd halves of them; all tied, many ties, few, none."""
    monkeypatch.setattr(ranking, "_FEWEST", 4)
    monkeypatch.setattr(ranking, "_BLOCK", 40 * n_items)  # 10 clients
    scores, targets, out = problem(33, n_items, levels, n_items + k)
    halves = [Ragged.from_lists([row[part] for row in out]) for part in (slice(7), slice(5, None))]
    rank, broken = find_targets(
        copies_of(scores), Ragged.from_lists(targets), k, halves, scores.shape[1]
    )
    assert rank.tolist() == by_sorting(scores, targets, k, out)
    assert not broken.any()


def test_targets_at_the_top_are_counted_for_in_pieces(monkeypatch):
    """All of them are near the top, more than there are clients in a block."""
    monkeypatch.setattr(ranking, "_FEWEST", 2)
    monkeypatch.setattr(ranking, "_BLOCK", 1)
    scores, _, _ = problem(5, 700, 10**6, 1)
    best = scores.argsort(1, descending=True)[:, :25].tolist()
    rank, _ = find_targets(copies_of(scores), Ragged.from_lists(best), 20, (), 700)
    assert rank.reshape(5, 25).tolist() == [[*range(20), *[20] * 5]] * 5


def test_clients_with_broken_scores_are_named_and_others_go_on():
    scores, targets, out = problem(9, 300, 60, 2)
    expected = by_sorting(scores, targets, 5, out)
    scores[3, 7], scores[8, 299], scores[0] = torch.nan, -torch.inf, 3e38
    rank, broken = find_targets(
        copies_of(scores), Ragged.from_lists(targets), 5, (Ragged.from_lists(out),), 300
    )
    assert broken.nonzero().flatten().tolist() == [3, 8]
    owner = Ragged.from_lists(targets).rows
    for client in (1, 2, 4, 5, 6, 7):
        own = (owner == client).nonzero().flatten()
        assert rank[own].tolist() == [expected[place] for place in own.tolist()]


def test_what_is_given_is_not_written_into():
    scores = torch.rand(3, 50)
    before = scores.clone()
    gone = Ragged.from_lists([[1], [2], [3]])
    find_targets(copies_of(scores), Ragged.from_lists([[4]] * 3), 2, (gone,), 50)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("n_clients", [0, 1, 63, 64, 127, 128, 200, 1049, 1050])
def test_blocks_cover_everybody_once_and_none_is_small(n_clients):
    blocks = list(blocks_of(n_clients, 8000))
    assert [c for block in blocks for c in range(block.start, block.stop)] == [*range(n_clients)]
    assert all(block.stop - block.start >= min(n_clients, 64) for block in blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_rows_are_sorted_as_torch_sorts_them(dtype):
    table = torch.randint(9, (7, 40)).to(dtype)
    assert torch.equal(sorted_rows(table), table.sort(1).values)
