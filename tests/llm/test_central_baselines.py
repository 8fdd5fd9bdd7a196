"""Popularity, MF and LightGCN with all data in one place."""

import logging
from dataclasses import replace

import pytest
import torch
from tests.llm.few_users import KEY, LENGTHS, N_ITEMS, few_users, group_users

from coterie.core.data.user_rows import UserRows
from coterie.core.errors import UserError
from coterie.core.ragged import Ragged
from coterie.llm.baselines.central import popularity_scores, train_lightgcn, train_mf
from coterie.llm.baselines.settings import LightGCNSettings, MFSettings

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


def test_popularity_counts_what_is_known_at_the_time():
    rows = few_users()
    found = popularity_scores(rows, N_ITEMS, LENGTHS)
    # Train and validation: items 0 to 8 were had by 3, 3, 3, 3, 3, 3, 2, 2 and 1 users.
    # User 2 has 0, 1, 2 and 4: the list is 3, 5 and both are right. User 5 has 3, 0, 5: 1, 2.
    # User 6 has 1, 4: 0, 2. Number 8 has 3: 0, 1, of which 1 is right, of two.
    assert found.recall[:, 0].tolist()[:3] == [1.0, 1.0, 1.0]
    assert found.recall[4].tolist() == [0.5, 0.0]
    assert found.recall[[3, 5, 6]].isnan().all()
    assert found.means()["test/recall@2"] == pytest.approx(3.5 / 4)
    assert set(found.means()) == {f"test/{m}@{k}" for m in ("recall", "ndcg") for k in LENGTHS}
    # Train alone: 3, 3, 3, 2, 2, 2, 2, 2, 1 users; 8 is not asked, it had nothing.
    # User 2 finds 4 at place 2 after 3, user 5 finds 0 of (0, 5), user 7 lists 1, 2.
    assert found.valid == pytest.approx((1.0 + 0.5 + 1.0) / 3)


@pytest.mark.parametrize("name", TRAIN)
def test_learns_groups_and_beats_popularity(name):
    rows, n_items = group_users()
    found = TRAIN[name](rows, n_items)
    assert found.means()["test/recall@4"] > 0.9
    assert (
        found.means()["test/recall@4"]
        > 2 * popularity_scores(rows, n_items, (4,)).means()["test/recall@4"]
    )
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
