"""Popularity, MF and LightGCN with all data in one place."""

import logging
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tests.core.methods.ranking.few_users import KEY, LENGTHS, N_ITEMS, few_users, group_users

from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.interactions.splits import UserRows
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError
from coterie.core.methods.ranking.central import train_lightgcn, train_mf
from coterie.core.methods.ranking.client import known_items, measure_split
from coterie.core.methods.ranking.references import popularity
from coterie.core.methods.settings.ranking import LightGCNSettings, MFSettings
from coterie.core.tensors.stacked import Ragged
from coterie.llm.data.client_data import build
from coterie.llm.rules import measure_popularity
from coterie.llm.settings import FederatedDataSettings

MF = MFSettings(dim=8, lr=0.05, batch_size=128, epochs=12, patience=12, l2=1e-3)
LIGHTGCN = LightGCNSettings(dim=8, lr=0.05, batch_size=128, epochs=12, patience=12)
TRAIN = {
    "mf": lambda rows, n_items, lengths=(4,): train_mf(MF, rows, n_items, lengths, KEY),
    "lightgcn": lambda rows, n_items, lengths=(4,): train_lightgcn(
        LIGHTGCN, rows, n_items, lengths, KEY
    ),
}


def newcomers() -> tuple[UserRows, int]:
    """The groups, but users 0 to 7 have no train item: what they like is in validation alone."""
    rows, n_items = group_users()
    empty = rows.train.lengths.clone()
    empty[:8] = 0
    train = Ragged.from_lengths(rows.train.values[rows.train.offsets[8] :], empty)
    return replace(rows, train=train), n_items


def counted(rows: UserRows, n_items: int, split: str, lengths: tuple[int, ...]) -> torch.Tensor:
    """Measure the ranking by interactions that are known at the time."""
    history = rows.train if split == "valid" else known_items(rows)
    counts = popularity(history, n_items)
    return measure_split(lambda users: counts.expand(users.numel(), -1), rows, split, lengths)


def test_users_are_measured_by_what_is_known_at_the_time():
    rows = few_users()
    found = counted(rows, N_ITEMS, "test", LENGTHS)[0]
    # Train and validation: items 0 to 8 were had by 3, 3, 3, 3, 3, 3, 2, 2 and 1 users.
    # User 2 has 0, 1, 2 and 4: the list is 3, 5 and both are right. User 5 has 3, 0, 5: 1, 2.
    # User 6 has 1, 4: 0, 2. Number 8 has 3: 0, 1, of which 1 is right, of two.
    assert found[:, 0].tolist()[:3] == [1.0, 1.0, 1.0]
    assert found[4].tolist() == [0.5, 0.0]
    assert found[[3, 5, 6]].isnan().all()
    assert float(found[:, 0].nanmean()) == pytest.approx(3.5 / 4)
    # Train alone: 3, 3, 3, 2, 2, 2, 2, 2, 1 users; 8 is not asked, it had nothing.
    # User 2 finds 4 at place 2 after 3, user 5 finds 0 of (0, 5), user 7 lists 1, 2.
    valid = counted(rows, N_ITEMS, "valid", LENGTHS)[0, :, 0].nanmean()
    assert float(valid) == pytest.approx((1.0 + 0.5 + 1.0) / 3)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_popularity_is_that_of_a_loop(split):
    data = build(k_core(generate(), 5), FederatedDataSettings(clients=4), KEY)
    before = data.split.train if split == "valid" else data.split.before_test()
    count = Counter(before.values.tolist())
    order = sorted(range(data.n_items), key=lambda item: (-count[item], item))
    asked = getattr(data.clients, split)
    for queries, found in zip(asked, measure_popularity(data, split), strict=True):
        assert set(found) == {f"{m}@{k}" for m in ("recall", "ndcg") for k in (10, 20)}
        users = zip(queries.seen.tolists(), queries.targets.tolists(), strict=True)
        for place, (seen, targets) in enumerate(users):
            best = [item for item in order if item not in seen][:10]
            gains = [1 / math.log2(n + 2) for n, item in enumerate(best) if item in targets]
            ideal = sum(1 / math.log2(n + 2) for n in range(min(10, len(targets))))
            assert float(found["recall@10"][place]) == pytest.approx(len(gains) / len(targets))
            assert float(found["ndcg@10"][place]) == pytest.approx(sum(gains) / ideal)


@pytest.mark.parametrize("name", TRAIN)
def test_learns_groups_and_beats_popularity(name):
    rows, n_items = group_users()
    found = TRAIN[name](rows, n_items)
    assert found.means()["test/recall@4"] > 0.9
    assert found.means()["test/recall@4"] > 2 * counted(rows, n_items, "test", (4,))[0].nanmean()
    assert found.valid > 0.9
    assert found.parameters == (60 + n_items) * 8
    assert torch.equal(found.recall, TRAIN[name](rows, n_items).recall)


@pytest.mark.parametrize("name", TRAIN)
def test_users_known_from_validation_alone_are_served(name):
    rows, n_items = newcomers()
    found = TRAIN[name](rows, n_items, (8,)).recall[:8, 0]
    assert found.mean() > 0.9  # 8 items of the group are left; by chance 8 of 38
    if name == "mf":
        without = train_mf(replace(MF, fold_in=0), rows, n_items, (8,), KEY).recall[:8, 0]
        assert without.mean() < 0.6


@pytest.mark.parametrize("name", TRAIN)
def test_users_without_items_and_without_targets(name, capfd, recwarn):
    rows = few_users()
    found = TRAIN[name](rows, N_ITEMS, LENGTHS)
    assert found.recall.shape == (7, 2)
    assert found.recall[:, 0].isnan().tolist() == [False, False, False, True, False, True, True]
    assert set(found.means()) == {f"test/{m}@{k}" for m in ("recall", "ndcg") for k in LENGTHS}
    assert "".join(capfd.readouterr()) == ""
    assert logging.getLogger("lightning.pytorch").level != logging.ERROR
    nothing = replace(rows, valid=Ragged.from_lists([[]] * 7))
    assert TRAIN[name](nothing, N_ITEMS).epochs == 12


def test_the_best_epoch_is_tested_not_the_last():
    rows, n_items = group_users()
    settings = replace(MF, epochs=30, patience=3)
    found = train_mf(settings, rows, n_items, (4,), KEY)
    assert found.epochs < 30


@pytest.mark.parametrize("kind", [MFSettings, LightGCNSettings])
def test_settings_are_checked(kind):
    with pytest.raises(UserError, match=r"\.lr' must be above 0"):
        kind(lr=0.0)
    with pytest.raises(UserError, match=r"\.epochs' must be at least 1"):
        kind(epochs=0)
