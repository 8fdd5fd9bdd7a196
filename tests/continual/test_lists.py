"""Lists of many users at once: those of each alone, and those of a plain loop."""

import numpy as np
import pytest
import torch

from coterie.continual.settings import ModelSettings, ReplaySettings, Settings
from coterie.core.registry.papers import find_paper
from coterie.core.run.recommendation_files import write_recommendations
from coterie.core.run.recommender import best_items
from coterie.core.run.serving import open_recommender
from coterie.core.settings.sections import LoggerSettings, RunSettings
from coterie.core.tensors.stacked import Ragged
from coterie.core.training.train import train


@pytest.fixture(scope="module")
def recommender(tmp_path_factory):
    settings = Settings(
        rounds=2,
        model=ModelSettings(dim=8),
        replay=ReplaySettings(top_n=10),
        logger=LoggerSettings(wandb="off"),
        run=RunSettings(out=str(tmp_path_factory.mktemp("lists")), progress=False),
    )
    return open_recommender(train(find_paper("f3crec"), settings))


def rows(table):
    return list(zip(*table.columns().values(), strict=True))


def test_everybodys_lists_are_those_of_each_alone_to_the_bit(recommender):
    users = range(recommender.data.n_users)
    together = recommender.lists(users, 10**6)
    alone = [row for user in users for row in rows(recommender.list_of(user, 10**6))]
    assert rows(together.table) == alone
    assert not together.left_out
    assert not together.finished


def test_lists_are_those_of_a_plain_loop(recommender):
    data, module = recommender.data, recommender.module
    mine = module.store.take(torch.arange(data.n_users))
    vectors, items = mine.best["user"].numpy(), module.server_state.best.numpy()
    for user in (0, 5, data.n_users - 1):
        scores = vectors[user] @ items.T
        had = {int(i) for u, i in zip(data.user, data.item, strict=True) if int(u) == user}
        expected = sorted((i for i in range(len(items)) if i not in had), key=lambda i: -scores[i])
        found = recommender.lists([user], 15).table
        assert not set(found.item.tolist()) & had
        assert found.rank.tolist() == list(range(1, 16))
        np.testing.assert_allclose(found.score, scores[expected[:15]], atol=6e-5)
        np.testing.assert_allclose(scores[found.item], scores[expected[:15]], atol=1e-6)


def test_lists_come_in_the_order_asked_for(recommender, monkeypatch):
    """Also where some users took no part and one has had everything."""
    monkeypatch.setitem(recommender.__dict__, "had", _with_everything(recommender, 7))
    place = recommender.module.store._place.clone()
    try:
        recommender.module.store._place[[3, 9]] = -1
        found = recommender.lists([9, 8, 7, 3, 1, 2], 4)
        assert list(found.left_out) == [9, 3]
        assert "client 9 has not taken part" in str(found.left_out[9])
        assert found.finished == [7]
        assert found.table.user.tolist() == [8] * 4 + [1] * 4 + [2] * 4
        nobody = recommender.lists([9], 4)
        assert (len(nobody.table), nobody.finished) == (0, [])
    finally:
        recommender.module.store._place.copy_(place)
    empty = recommender.lists([], 4)
    assert (len(empty.table), empty.left_out, empty.finished) == (0, {}, [])


def test_scores_may_come_in_any_order(recommender, monkeypatch):
    expected = rows(recommender.lists(range(30), 5).table)
    scored = recommender.experiment.score_users

    def backwards(module, users):
        return ((places.flip(0), scores.flip(0)) for places, scores in scored(module, users))

    monkeypatch.setattr(recommender.experiment, "score_users", backwards)
    assert rows(recommender.lists(range(30), 5).table) == expected


def _with_everything(recommender, user):
    lists = recommender.had.tolists()
    lists[user] = list(range(recommender.data.n_items))
    return Ragged.from_lists(lists)


def test_equal_scores_are_in_the_order_of_the_items():
    scores = torch.tensor([[1.0, 2.0, 2.0, 1.0, -torch.inf], [0.0] * 5])
    best = best_items(scores, Ragged.from_lists([[1], []]), 4)
    assert best.row.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert best.item.tolist() == [2, 0, 3, 0, 1, 2, 3]
    assert best.rank.tolist() == [1, 2, 3, 1, 2, 3, 4]
    assert best.score.tolist() == [2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_many_rows_are_written_some_at_a_time(recommender, tmp_path, monkeypatch, suffix):
    """And a file of no rows has its columns."""
    import pandas as pd

    read = {
        "csv": lambda path: pd.read_csv(path, dtype={"user": str, "item": str}),
        "jsonl": lambda path: pd.read_json(path, lines=True, dtype={"user": str, "item": str}),
        "parquet": pd.read_parquet,
    }[suffix]
    monkeypatch.setattr("coterie.core.run.recommendation_files._AT_ONCE", 7)
    table = recommender.lists(range(10), 3).table
    write_recommendations(tmp_path / f"all.{suffix}", table)
    found = read(tmp_path / f"all.{suffix}")
    columns = ["user", "rank", "item"]
    assert found[columns].to_dict("list") == {name: table.columns()[name] for name in columns}
    np.testing.assert_allclose(found.score, table.score, rtol=1e-14)
    write_recommendations(tmp_path / f"none.{suffix}", recommender.lists([], 3).table)
    assert (tmp_path / f"none.{suffix}").exists()
    if suffix != "jsonl":
        assert list(read(tmp_path / f"none.{suffix}").columns) == list(found.columns)
