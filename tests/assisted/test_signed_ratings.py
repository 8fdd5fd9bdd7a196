"""Ratings are what is predicted: those of 0 or less count as the others do."""

import numpy as np
import pandas as pd
import pytest

from coterie.assisted.experiment import Experiment
from coterie.assisted.settings import Settings
from coterie.core.cli.main import main
from coterie.core.run import serving
from coterie.core.settings.schema import build

SHIFTS = (0.0, 20.0)


@pytest.fixture
def table():
    """Ratings from -6.6 to 6.6 of two shops; a user knows both or one of them."""
    draw = np.random.default_rng(5)
    rows = [
        (f"u{user:02d}", shop, f"i{item}", round(float(draw.uniform(-6.6, 6.6)), 1))
        for user in range(24)
        for shop in ("books", "films")[: 1 + (user > 3)]
        for item in draw.choice(12, 8, replace=False)
    ]
    rows[5] = (*rows[5][:3], 0.0)
    return pd.DataFrame(rows, columns=["user", "shop", "item", "rating"])


def settings(path, **more):
    return {
        "data.name": str(path),
        "data.columns": {"domain": "shop"},
        "data.domains": "source",
        **more,
    }


def test_no_rating_is_dropped_for_its_sign(table, tmp_path):
    path = tmp_path / "r.csv"
    table.to_csv(path, index=False)
    experiment = Experiment(build(Settings, settings(path)))
    data = experiment.interactions
    assert data.dropped == ()
    ordered = table.assign(id=table.shop + "/" + table["item"]).sort_values(["user", "id"])
    np.testing.assert_array_equal(data.rating.numpy(), ordered.rating.astype("float32"))
    held = sum(row["train"] + row["valid"] + row["test"] for row in experiment.describe_data())
    assert held == len(table)


def test_a_scale_may_begin_at_0(table, tmp_path):
    """The cells that are held are those of the same ratings on a scale that begins above 0."""
    parts = []
    for shift in SHIFTS:
        path = tmp_path / f"{shift:g}.csv"
        table.assign(rating=table.rating.round() + shift).to_csv(path, index=False)
        each = Experiment(build(Settings, settings(path))).organisations.each
        parts.append([(one.train.rows, one.train.columns.values, one.train.values) for one in each])
    for (rows, columns, values), (rows_2, columns_2, values_2) in zip(*parts, strict=True):
        assert rows.equal(rows_2)
        assert columns.equal(columns_2)
        assert (values + SHIFTS[1]).equal(values_2)


def test_a_later_rating_of_a_pair_is_said(table, tmp_path, capsys):
    path = tmp_path / "r.csv"
    pd.concat([table, table.iloc[:3]]).to_csv(path, index=False)
    flags = ["--data", str(path), "--data.columns", "domain=shop", "--data.domains", "source"]
    more = ["--rounds", "1", "--out", str(tmp_path), "--logger.wandb", "off"]
    more += ["--run.name", "a", "--run.progress", "false", "--compare", "false"]
    assert main(["train", "mtal", *flags, *more]) == 0
    told = capsys.readouterr().out.splitlines()
    line = f"Rows left out: 3 of {len(table) + 3} rows, later ratings of an item by the same user"
    assert line in told

    # Whom one shop alone knows is recommended what it has, and nothing that was rated.
    run = tmp_path / "mtal" / "a"
    rows, _ = serving.recommend(run, user="u00", top=100)
    own = table[table.user == "u00"]
    books = {f"books/{item}" for item in table[table.shop == "books"].item}
    assert {row["item"] for row in rows} == books - {f"books/{item}" for item in own.item}
    assert serving.recommend_all(run, tmp_path / "all.csv").users == table.user.nunique()
