"""The best round is chosen by validation items; test items tell how good it is, and no more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from tests.core.methods.ranking import test_fedmf, test_fedpergnn, test_lightfr
from tests.core.methods.ranking.few_users import group_users, module_of, run
from torch import Tensor

from coterie.core.data.interactions.splits import UserRows
from coterie.core.methods.ranking.client import RankingClient
from coterie.core.methods.ranking.server import RankingServer
from coterie.core.metrics.ranking_report import RankingReport, Split
from coterie.core.protocol.messages import Down, Step, carries
from coterie.core.settings.sections import ValidationSettings
from coterie.core.tensors.stacked import Ragged

TRAIN, VALID, TEST, OTHERS = 0, 1, 2, [3, 4, 5]
N_ITEMS = 6


@dataclass(frozen=True)
class Order(Down):
    """What all users like, best first."""

    scores: Tensor = carries("score of every item")
    split: Split = carries("which items to look for", default="valid")


@dataclass(frozen=True)
class Three:
    """As many rounds as there are orders in the tests."""

    rounds: int = 3
    patience: int = 3
    participation: float = 1.0
    validation: ValidationSettings = field(default_factory=ValidationSettings)


EVALUATE, FOLD_IN = Step("evaluate", Order, RankingReport), Step("fold_in", Order, None)


class Follower(RankingClient):
    """A user who likes what the server says."""

    def start(self, key):
        return {"nothing": key.uniform(1)}

    def scores(self, params, down, history=None):
        return down.scores.expand(len(params["nothing"]), -1)

    @EVALUATE
    def evaluate(self, down, mine, data, key):
        return self.ranked(down, mine, data), None

    @FOLD_IN
    def fold_in(self, down, mine, data, key):
        return None, mine


class Scripted(RankingServer[Order]):
    """Says in each round which items come first."""

    evaluate, fold_in = EVALUATE, FOLD_IN

    def __init__(self, first: list[list[int]]) -> None:
        super().__init__(Three(), N_ITEMS, (1,))
        self.first = first

    def start(self, key):
        return {"scores": torch.zeros(N_ITEMS), "round": torch.tensor(0)}

    def train(self, state, cohort, key):
        first = self.first[state.round]
        rest = [item for item in range(N_ITEMS) if item not in first]
        scores = torch.zeros(N_ITEMS)
        scores[torch.tensor(first + rest)] = torch.arange(N_ITEMS, 0, -1.0)
        return {"scores": scores, "round": torch.tensor(state.round + 1)}

    def table(self, public, split="valid"):
        return Order(public["scores"], split)


LOST, FOUND = [*OTHERS, TRAIN, TEST, VALID], [TRAIN, VALID, *OTHERS, TEST]  # by validation
FOUND_BY_TEST = [TEST, *OTHERS, TRAIN, VALID]


@pytest.mark.parametrize(
    ("orders", "best", "test"),
    [
        ([LOST, FOUND, FOUND_BY_TEST], 2, 0.0),
        ([FOUND_BY_TEST, LOST, FOUND], 3, 0.0),
        ([FOUND, FOUND_BY_TEST, FOUND_BY_TEST], 1, 0.0),
        ([FOUND_BY_TEST, [TRAIN, VALID, TEST], FOUND_BY_TEST], 2, 1.0),  # VALID is known by then
    ],
)
def test_validation_chooses_and_the_test_only_tells(orders, best, test):
    one = [[TRAIN]], [[VALID]], [[TEST]]
    data = UserRows(torch.tensor([7]), *(Ragged.from_lists(items) for items in one))
    module = module_of(Scripted(orders), Follower(Three(), N_ITEMS, (1,)), data)
    while not module.finished:
        module.advance()
    found = [measured["eval/recall@1"] for measured in module.history]
    assert found == [1.0 if order[0] == TRAIN else 0.0 for order in orders]
    assert module.results["test/best_round"] == module.server_state.chosen.round == best
    assert int(module.server_state.best["round"]) == best
    assert module.results["test/recall@1"] == test


def test_a_sample_of_users_validates_every_other_round_and_all_are_tested():
    data, n_items = group_users(24)
    validation = ValidationSettings(every=2, clients=5)
    options = {"n_items": n_items, "lengths": (10,), "rounds": 3, "validation": validation}
    module = module_of(*test_fedmf.build(**options), data)
    asked = []
    while not module.finished:
        module.advance()
        counts = {name: len(ids) for name, (ids, _) in module.journal.clients.items()}
        asked.append((counts.get("eval/recall@10"), counts.get("test/recall@10")))
    assert asked == [(None, None), (5, None), (5, 24)]


def rounds_of(build, data, **options):
    """What each round measured and left, and the tests at the end."""
    module = run(*build(**options), data)
    rows = [{k: v for k, v in row.items() if "test" not in k} for row in module.history]
    tests = {k: v for k, v in module.results.items() if "best_round" not in k}
    return rows, module.server_state, tests


METHODS = {"fedmf": test_fedmf, "lightfr": test_lightfr, "fedpergnn": test_fedpergnn}


@pytest.mark.parametrize("method", METHODS)
def test_other_test_items_change_no_round_and_other_validation_items_do(method):
    build = METHODS[method].build
    data, n_items = group_users(24)
    others = strange_items(data, n_items)
    options = {"n_items": n_items, "lengths": (10,), "rounds": 5, "patience": 5}
    rows, state, tests = rounds_of(build, data, **options)
    same, same_state, other_tests = rounds_of(build, replace(data, test=others), **options)
    assert rows == same
    assert state.chosen == same_state.chosen
    for part in ("public", "best"):
        for name, value in getattr(state, part).items():
            assert torch.equal(value, getattr(same_state, part)[name]), name
    assert tests != other_tests
    changed, *_ = rounds_of(build, replace(data, valid=others), **options)
    assert [row["eval/recall@10"] for row in rows] != [row["eval/recall@10"] for row in changed]


def strange_items(data: UserRows, n_items: int) -> Ragged:
    """Two items of each user that it does not have in any part."""
    have = data.train.mask(n_items) | data.valid.mask(n_items) | data.test.mask(n_items)
    return Ragged.from_lists([(~one).nonzero().flatten()[:2].tolist() for one in have])
