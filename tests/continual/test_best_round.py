"""The best round of a block: what is measured, kept, carried on and remembered."""

from dataclasses import replace

import pytest
import torch
from tests.continual.stream import block_data, make_stream, settings, simulate

from coterie.continual.algorithm import F3CRec
from coterie.continual.client import ContinualClient
from coterie.continual.messages import (
    EVALUATE,
    UPDATE,
    EndedBlock,
    EvaluationTable,
    ItemTable,
    ItemUpdate,
    LookBack,
)
from coterie.core.federation.selection import BestRound
from coterie.core.metrics.ranking import ranking_metrics
from coterie.core.metrics.ranking_report import RankingReport
from coterie.core.protocol.journal import Journal
from coterie.core.protocol.replies import FoldedReplies, StackedReplies
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import DenseRows

TABLE = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]], dtype=torch.float64)
DATA = block_data({3: ([0], [3], [1]), 8: ([4], [3], [2])})
KEY = Key.from_seed(0).fold(DATA.ids)


def split_self(method="f3crec", **changes):
    """A client whose last round ranks items downwards and whose best one upwards."""
    replayed = settings().replay
    changes = {"replay": replace(replayed, top_n=2), "model": {"dim": 1}, **changes}
    client = ContinualClient(settings(method, **changes))
    mine = client.enrol(DATA, KEY)
    up = torch.ones(2, 1, dtype=torch.float64)
    return client, replace(mine, params={"user": up}, best={"user": -up})


def test_validation_ranks_by_the_last_round_without_train_items():
    """Order 4, 3, 2, 1, 0: item 3 is second, or first where 4 is train."""
    client, mine = split_self(top_k=1)
    report, none = client.evaluate(EvaluationTable(TABLE), mine, DATA, KEY)
    assert report.recall[:, 0].tolist() == [0.0, 1.0]
    assert none is None


def test_the_test_ranks_by_the_best_round_without_train_and_validation_items():
    """Order 0, 1, 2, 3, 4: item 1 is first without the train item 0, item 2 is third."""
    client, mine = split_self(top_k=1)
    report, _ = client.evaluate(EvaluationTable(TABLE, "test"), mine, DATA, KEY)
    assert report.recall[:, 0].tolist() == [1.0, 0.0]
    data = block_data({3: ([0], [2], [3]), 8: ([2], [0, 1], [3])})
    report, _ = client.evaluate(EvaluationTable(TABLE, "test"), mine, data, KEY)
    # Item 1 is before 3; train and validation are out.
    assert report.recall[:, 0].tolist() == [0.0, 1.0]


def test_keeping_and_carrying():
    client, mine = split_self()
    _, kept = client.keep_best(None, mine, DATA, KEY)
    assert torch.equal(kept.best["user"], mine.params["user"])
    for carry, expected in (("best", mine.best), ("last", mine.params)):
        client, mine = split_self(carry=carry)
        _, ended = client.end_block(EndedBlock(TABLE, 0), mine, DATA, KEY)
        assert torch.equal(ended.params["user"], expected["user"])
        assert ended.blocks.tolist() == [1, 1]


def test_the_teacher_is_the_best_round():
    """The list (0, 1) and its probabilities σ(-1), σ(-2)."""
    client, mine = split_self(carry="last")
    _, started = client.start_block(LookBack(1, TABLE), mine, DATA, KEY)
    assert started.memory["items"].tolist() == [[0, 1], [0, 1]]
    expected = torch.sigmoid(torch.tensor([-1.0, -2.0], dtype=torch.float64))
    torch.testing.assert_close(started.memory["taught"][0], expected)


def test_the_list_of_the_last_block_seen():
    """`last-seen`: listed at the block's end, taught by the newest table."""
    replay = replace(settings().replay, top_n=2, remember="last-seen")
    client, mine = split_self(replay=replay)
    _, ended = client.end_block(EndedBlock(TABLE, 0), mine, DATA, KEY)
    assert ended.memory["items"].tolist() == [[0, 1], [0, 1]]
    _, started = client.start_block(LookBack(1, -TABLE), ended, DATA, KEY)
    assert started.memory["items"].tolist() == [[0, 1], [0, 1]]
    expected = torch.sigmoid(torch.tensor([1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(started.memory["taught"][0], expected)


def test_the_pull_is_to_the_best_round():
    client, mine = split_self("reg", carry="last")
    _, ended = client.end_block(EndedBlock(TABLE, 0), mine, DATA, KEY)
    assert torch.equal(ended.memory["start"]["user"], mine.best["user"])


def test_private_parameters_anew():
    """The released reading: new parameters in every block, while the teacher is the old self."""
    client, mine = split_self(restart_private=True)
    _, started = client.start_block(LookBack(1, TABLE), mine, DATA, KEY)
    assert not torch.equal(started.params["user"], mine.params["user"])
    assert started.memory["items"].tolist() == [[0, 1], [0, 1]]


class Scripted:
    """A cohort that answers updates with +1 and evaluations with a script of scores."""

    def __init__(self, scores):
        self.scores, self.asked, self.journal = iter(scores), [], Journal()
        self.ids = torch.tensor([0])

    def __len__(self):
        return len(self.ids)

    def sample(self, fraction, key):
        return self

    def draw(self, count, key):
        return self

    def enrol(self):
        return self.ids

    def ask(self, step, down, reduce=None):
        self.asked.append((step.name, down))
        if step is UPDATE:
            rows, one = DenseRows(torch.ones_like(down.items)[None]), torch.tensor(1.0)
            return FoldedReplies(self.ids, {}, ItemUpdate(rows, None, one, one))
        if step is EVALUATE:
            value = torch.tensor([[next(self.scores)]], dtype=torch.float64)
            return StackedReplies(self.ids, {}, RankingReport(value, value))
        return StackedReplies(self.ids, {})


def play(scores, method="ft", **changes):
    chosen = settings(method, rounds=9, patience=3, **changes)
    server, cohort = F3CRec(chosen, (4, 6)), Scripted(scores)
    state = server.begin(Key.from_seed(0))
    start, decision = state.items, "go"
    state = server.start_block(state, 0, cohort, Key.from_seed(1))
    while decision == "go":
        state = server.round(state, cohort, Key.from_seed(2))
        decision = server.stop(state, [])
    return server, cohort, state, start


def test_the_best_round_and_patience():
    """Ties to five digits keep the earlier round; three rounds without a better one end it."""
    server, cohort, state, start = play([0.1, 0.3, 0.300004, 0.2, 0.3, 0.9])
    assert (state.round, state.chosen) == (5, BestRound(2, 0.3))
    torch.testing.assert_close(state.best, start + 2, rtol=0, atol=1e-14)
    torch.testing.assert_close(state.items, start + 5, rtol=0, atol=1e-14)
    assert [step for step, _ in cohort.asked].count("keep_best") == 2
    _ = server.end_block(state, cohort, Key.from_seed(3))
    ended, tested = cohort.asked[-2:]
    assert (ended[0], tested[0], tested[1].split) == ("end_block", "evaluate", "test")
    assert torch.equal(ended[1].items, state.best)
    assert torch.equal(tested[1].items, state.best)
    assert cohort.journal.scalars["test/block0/ndcg@20"] == 0.9
    assert cohort.journal.scalars["test/block0/best_round"] == 2


def test_the_most_rounds():
    _, _, state, _ = play([round_ / 10 for round_ in range(20)])
    assert (state.round, state.chosen.round) == (9, 9)


@pytest.mark.parametrize("carry", ["best", "last"])
def test_what_starts_the_next_block(carry):
    """Items of the best or last round, new rows N(0, σ²); the old table is always the best one."""
    scores = [0.1, 0.3, 0.2, 0.2, 0.2, 0.25]  # the last of what the next block starts from
    server, cohort, state, _ = play(scores, "f3crec", carry=carry)
    begun = server.start_block(state, 1, cohort, Key.from_seed(4))
    kept = state.best if carry == "best" else state.items
    assert torch.equal(begun.items[:4], kept)
    assert begun.items.shape == (6, 4)
    assert 0 < float(begun.items[4:].abs().max()) < 2
    assert torch.equal(begun.old, state.best)
    assert (begun.block, begun.round, begun.chosen) == (1, 0, BestRound(0, 0.25))
    assert torch.equal(begun.best, begun.items)
    assert cohort.journal.scalars["start/ndcg@20"] == 0.25
    (step, down), (measures, table), (keeps, _) = cohort.asked[-3:]
    assert (step, measures, keeps) == ("start_block", "evaluate", "keep_best")
    assert torch.equal(down.items, state.best)
    assert (table.split, torch.equal(table.items, begun.items)) == ("valid", True)


@pytest.mark.parametrize(("scores", "best"), [([0.2, 0.1, 0.2], 0), ([0.2, 0.1, 0.3], 2)])
def test_what_a_block_starts_from_competes_as_round_0(scores, best):
    """A tie is the start's; three rounds without a better one end the block."""
    server, cohort, state, _ = play([0.9, 0.1, 0.1, 0.1, 0.9], "ft")
    state = server.end_block(state, cohort, Key.from_seed(3))
    cohort.scores = iter([*scores, 0.1, 0.1, 0.1, 0.7])
    state = begun = server.start_block(state, 1, cohort, Key.from_seed(4))
    while server.stop(state, []) == "go":
        state = server.round(state, cohort, Key.from_seed(5))
    assert (state.round, state.chosen) == (best + 3, BestRound(best, max(scores)))
    assert torch.equal(state.best, begun.items) == (best == 0)
    server.end_block(state, cohort, Key.from_seed(6))
    assert cohort.journal.scalars["test/block1/best_round"] == best


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("method", "sent"),
    [
        *((method, set()) for method in ("ft", "reg", "rlp2", "f3crec-wo-cc")),
        *((method, {"items"}) for method in ("kd", "f3crec", "f3crec-wo-arm", "f3crec-wo-sc")),
        ("spp", {"slow", "fast"}),
    ],
)
def test_a_new_block_sends_what_the_method_reads(method, sent, restart):
    """To clients that neither look back nor start anew, nothing at all."""
    server, cohort, state, _ = play([0.1] * 5, method, restart_private=restart)
    state = server.end_block(state, cohort, Key.from_seed(3))
    before, cohort.scores = len(cohort.asked), iter([0.1])
    server.start_block(state, 1, cohort, Key.from_seed(4))
    asked = cohort.asked[before:-2]
    assert [step for step, _ in cohort.asked[-2:]] == ["evaluate", "keep_best"]
    assert [step for step, _ in asked] == ["start_block"] * bool(sent or restart)
    for _, down in asked:
        assert {name for name, _ in tree.tensors(down)} == sent


def test_a_correction_counts_in_the_validation_of_what_is_tested():
    """RLP2: by the memory that the block has just left, as in the test; its rounds go without."""
    chosen = settings("rlp2", rounds=2)
    never = replace(chosen, rlp2=replace(chosen.rlp2, strength=0.0))
    blocks = make_stream(60)[:1]
    found, plain = (simulate(each, blocks, n_items=(30,)) for each in (chosen, never))
    key, measured = "valid/block0/ndcg@20", found.scalars[-1]
    assert [s["eval/ndcg@20"] for s in found.scalars] == [s["eval/ndcg@20"] for s in plain.scalars]
    best = max(s["eval/ndcg@20"] for s in plain.scalars)
    assert plain.scalars[-1][key] == pytest.approx(best, rel=1e-12)
    assert measured[key] != pytest.approx(best, rel=1e-6)
    client, data = ContinualClient(chosen), blocks[0]
    scores = client.predict(ItemTable(found.state.best), found.store.take(data.ids))
    seen = data.train.mask(30)
    expected = ranking_metrics(scores, data.valid, 20, seen).ndcg.nanmean()
    assert measured[key] == pytest.approx(float(expected), rel=1e-12)
