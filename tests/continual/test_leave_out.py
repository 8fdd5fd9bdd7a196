"""What a client remembers as a list of items that are not recommended again."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.continual.stream import BACKBONES, METHODS, N_ITEMS, make_stream, settings, simulate

from coterie.continual.client import ContinualClient
from coterie.continual.messages import EndedBlock, EvaluationTable
from coterie.continual.retention import LeaveOut, score_items
from coterie.core.data.interactions.splits import UserRows
from coterie.core.metrics.ranking import ranking_metrics
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

pytestmark = pytest.mark.usefixtures("rounds_alone")


def using(use, method="f3crec", backbone="fedmf", n=8, **changes):
    chosen = settings(method, backbone, **changes)
    return replace(chosen, replay=replace(chosen.replay, use=use, leave_out_n=n))


@given(st.data())
def test_what_is_noted_equals_a_loop(data):
    """Of each block's train items the N that rank highest; every block has its places."""
    length, n_users = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    memory, expected = LeaveOut(length, n_blocks=3), [set() for _ in range(n_users)]
    left_out = memory.empty(n_users)
    for n_items, started in zip((4, 6, 9), range(3), strict=True):
        draw = lambda: data.draw(st.permutations(range(n_items)))  # noqa: B023, E731
        orders = [draw() for _ in range(n_users)]
        train = [draw()[: data.draw(st.integers(0, n_items))] for _ in range(n_users)]
        scores = torch.zeros(n_users, n_items)
        for user, order in enumerate(orders):
            scores[user, torch.tensor(order)] = torch.arange(n_items, 0, -1).float()
            expected[user] |= set([item for item in order if item in train[user]][:length])
        blocks = torch.full((n_users,), started)
        left_out = memory.noted(left_out, blocks, scores, Ragged.from_lists(train))
        for user, row in enumerate(memory.rows(left_out).tolists()):
            assert set(row) == expected[user]
    assert left_out.shape == (n_users, 3 * length)


def test_room_for_blocks_that_came_since_changes_no_list():
    before, after = LeaveOut(2, n_blocks=2), LeaveOut(2, n_blocks=4)
    train, one = Ragged.from_lists([[0, 1, 2], [1]]), torch.tensor([1, 0])
    noted = before.noted(before.empty(2), one, torch.rand(2, 5), train)
    wider = after.widened(noted)
    assert wider.shape == (2, 8)
    assert wider.dtype == noted.dtype
    assert after.rows(wider).tolists() == before.rows(noted).tolists()
    assert after.widened(wider) is wider


def test_nothing_is_kept_where_the_list_is_only_distilled():
    run = simulate(using("distil", rounds=1), make_stream(30))
    assert run.private()[1].left_out.shape[1] == 0


@pytest.mark.parametrize(
    ("method", "backbone"),
    [(m, "fedmf") for m in METHODS] + [("f3crec", b) for b in BACKBONES if b != "fedmf"],
)
def test_it_takes_no_part_in_training(method, backbone):
    """The same tables and parameters of every round, as long as the same rounds are chosen."""
    blocks = make_stream(40)[:2]
    distilled = using("distil", method, backbone, rounds=1)
    both = replace(distilled, replay=replace(distilled.replay, use="both"))
    a, b = (simulate(chosen, blocks, n_items=N_ITEMS[:2]) for chosen in (distilled, both))
    for name, value in a.tensors().items():
        if name != "left_out":
            assert torch.equal(value, b.tensors()[name]), name
    assert int((b.private()[1].left_out >= 0).sum()) > 0


@pytest.mark.parametrize(("method", "like"), [("kd", "ft"), ("f3crec", "f3crec-wo-cc")])
def test_a_list_that_is_not_distilled_is_no_part_of_training(method, like):
    """Then KD trains as FT does, F³CRec as without its client side, and no table looks back."""
    blocks = make_stream(40)
    a, b = (simulate(using("leave-out", name, rounds=2), blocks) for name in (method, like))
    assert torch.equal(a.state.items, b.state.items)
    steps = {row["step"] for row in a.ledger.rows()}
    assert "start_block" not in steps
    assert "update" in steps


def naive_evaluation(client, mine, data, left_out, table, split):
    """One user after the other, with sets."""
    params = mine.best if split == "test" else mine.params
    scores = score_items(client.backbone, params, table)
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    for user, (train, valid) in enumerate(
        zip(data.train.tolists(), data.valid.tolists(), strict=True)
    ):
        seen = set(train) | set(left_out[user]) | (set(valid) if split == "test" else set())
        hidden[user, list(seen)] = True
    targets = data.test if split == "test" else data.valid
    return ranking_metrics(scores, targets, 20, hidden)


def late_users(use="leave-out", earlier=True):
    """Users of FedMF in their second block, after one that they ended with three train items."""
    client = ContinualClient(using(use, "ft", n=30))
    ids = torch.tensor([0, 1])
    key = Key.from_seed(4).fold(ids)
    table = Key.from_seed(5).fold(torch.arange(30)).normal(4, dtype=torch.float64)
    nothing = Ragged.from_lists([[], []])
    first = UserRows(ids, Ragged.from_lists([[0, 1, 2], [3, 4, 5]]), nothing, nothing)
    mine = client.enrol(first, key)
    _, mine = client.end_block(EndedBlock(table, 0), mine, first, key)
    had = Ragged.from_lists([[0, 1, 2, 9], [3, 4, 5]]) if earlier else None
    parts = ([[6, 7], [8]], [[10, 11], [12]], [[9, 13], [14]])
    return client, mine, UserRows(ids, *map(Ragged.from_lists, parts), had), table, key


@pytest.mark.parametrize("split", ["valid", "test"])
def test_it_is_left_out_of_validation_and_test(split):
    client, mine, data, table, key = late_users()
    report, _ = client.evaluate(EvaluationTable(table, split), mine, data, key)
    expected = naive_evaluation(client, mine, data, [{0, 1, 2}, {3, 4, 5}], table, split)
    torch.testing.assert_close(report.ndcg[:, 0], expected.ndcg, rtol=0, atol=0)
    torch.testing.assert_close(report.recall[:, 0], expected.recall, rtol=0, atol=0)
    _, plain, *_ = late_users("distil")
    paper, _ = client.evaluate(EvaluationTable(table, split), plain, data, key)
    assert bool((report.ndcg >= paper.ndcg).all())
    assert bool((report.ndcg > paper.ndcg).any())


def test_the_second_protocol_neither_ranks_nor_seeks_what_was_had():
    """Item 9, which user 0 had, is a target of the paper's protocol and none of the second."""
    client, mine, data, table, key = late_users("distil")
    report, _ = client.evaluate(EvaluationTable(table, "test"), mine, data, key)
    scores = score_items(client.backbone, mine.best, table)
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    hidden[0, [0, 1, 2, 9, 6, 7, 10, 11]] = True
    hidden[1, [3, 4, 5, 8, 12]] = True
    expected = ranking_metrics(scores, Ragged.from_lists([[13], [14]]), 20, hidden)
    torch.testing.assert_close(report.ndcg_unseen[:, 0], expected.ndcg, rtol=0, atol=0)
    torch.testing.assert_close(report.recall_unseen[:, 0], expected.recall, rtol=0, atol=0)
    named = report.by_name((20,))
    assert set(named) == {"recall@20", "ndcg@20", "recall@20_unseen", "ndcg@20_unseen"}
    client, mine, data, table, key = late_users("distil", earlier=False)
    report, _ = client.evaluate(EvaluationTable(table, "test"), mine, data, key)
    assert set(report.by_name((20,))) == {"recall@20", "ndcg@20"}


def test_the_server_learning_rate_is_of_later_blocks():
    """Q_g moves by half of the mean of the changes, from the second block on."""
    blocks = make_stream(40)
    full, half = (simulate(using("distil", "ft", rounds=1, server_lr=x), blocks) for x in (1, 0.5))
    assert torch.equal(full.tables[0], half.tables[0])
    n_old = N_ITEMS[0]
    moved = full.tables[1][:n_old] - full.tables[0]
    torch.testing.assert_close(half.tables[1][:n_old] - half.tables[0], moved / 2)
    still = simulate(using("distil", "ft", rounds=1, server_lr=0), blocks)
    assert torch.equal(still.tables[2][:n_old], still.tables[0])
