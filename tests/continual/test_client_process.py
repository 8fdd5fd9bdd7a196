"""F³CRec's client half in a process of its own answers what the clients of one process do."""

import pytest
import torch
from tests.hosted import same_both_ways

from coterie.continual.client import make_client
from coterie.continual.messages import EndedBlock, EvaluationTable, ItemTable, LookBack
from coterie.core.data.interactions.splits import UserRows
from coterie.core.protocol.card import Card
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

SETTINGS = {
    "model.dim": 4,
    "model.batch_size": 8,
    "replay.top_n": 5,
    "replay.epsilon": 0.01,
    "replay.lambda_kd": 1.0,
    "kd.strength": 1.0,
}
SECRET = Key.from_seed(3).fold("clients")


def blocks():
    ids = torch.tensor([0, 1, 2])
    first = [[0, 1, 2, 3, 4], [5, 6], [1, 3, 5, 7]]
    second = [[8, 9, 10], [0, 11, 2, 4, 6, 8], [9]]
    nothing = Ragged.from_lists([[], [], []])
    held = Ragged.from_lists([[6], [], [2]])
    return [
        UserRows(ids, Ragged.from_lists(first), held, nothing),
        UserRows(ids, Ragged.from_lists(second), nothing, held),
    ]


def table(n_items):
    return Key.from_seed(5).fold(torch.arange(n_items)).normal(4)


def asks():
    """Every step of two blocks: step, message, block."""
    best = table(10) * 1.5
    yield "update", ItemTable(table(10)), 0
    yield "evaluate", EvaluationTable(table(10)), 0
    yield "keep_best", None, 0
    yield "end_block", EndedBlock(best, 0), 0
    yield "start_block", LookBack(1, best, table(10), -table(10)), 1
    yield "update", ItemTable(table(12), best), 1
    yield "keep_best", None, 1
    yield "end_block", EndedBlock(table(12), 1), 1
    yield "evaluate", EvaluationTable(table(12), "test"), 1


# Every method with two private parameters; with one and four, those that keep some in memory or
# score lists by them.
CASES = [(method, "pfedrec") for method in ("ft", "reg", "kd", "rlp2", "spp", "f3crec")]
CASES += [("reg", "fedncf"), ("spp", "fedncf"), ("spp", "fedmf"), ("f3crec", "fedmf")]


@pytest.mark.long
@pytest.mark.parametrize(("method", "backbone"), CASES)
def test_a_process_answers_the_same_bits(tmp_path, method, backbone):
    card = Card("f3crec", SETTINGS | {"method": method, "model.name": backbone, "model.lr": 0.05})
    data = dict(enumerate(blocks()))
    same_both_ways(tmp_path, make_client(card), data, list(asks()), SECRET, card=card)
