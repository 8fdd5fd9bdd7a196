"""Recommendations of a run on an own file: what is consumed, whose rules hold, what is written."""

import json
import random

import pandas as pd
import pytest
import torch

from coterie.continual.settings import ModelSettings, ReplaySettings, Settings, StreamSettings
from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.kernels import switch
from coterie.core.registry.papers import find_paper
from coterie.core.run import serving
from coterie.core.settings.sections import LoggerSettings, RunSettings
from coterie.core.training.train import train

USERS, ITEMS = 30, 24
COLUMNS = {"user": "who", "item": "movieId", "rating": "stars", "title": "film", "time": "at"}
TITLES = {f"m{n:02d}": f"Film {n:02d}" for n in range(ITEMS)} | {
    "m00": "Hamlet",
    "m01": "Hamlet",
}


def ratings() -> pd.DataFrame:
    """Ratings of 1 to 5 of half of the items by each user; whoever is last has rated all."""
    draw = random.Random(3)
    rows = []
    for user in range(USERS):
        count = ITEMS if user == USERS - 1 else ITEMS // 2
        for item in draw.sample(range(ITEMS), count):
            stars = draw.choice([1, 2, 3, 4, 4, 5, 5])
            rows.append((f"U{user}", f"m{item:02d}", stars, TITLES[f"m{item:02d}"]))
    draw.shuffle(rows)
    rows += [("low", "m05", 1, TITLES["m05"]), ("low", "m06", 2, TITLES["m06"])]
    rows += [("U0", "rare", 5, "Rare")]
    table = pd.DataFrame(rows, columns=["who", "movieId", "stars", "film"])
    return table.assign(at=range(len(table)))


def train_on(path, out, **data):
    return train(
        find_paper("f3crec"),
        Settings(
            rounds=1,
            model=ModelSettings(dim=4),
            replay=ReplaySettings(top_n=5),
            data=StreamSettings(name=str(path), columns=COLUMNS, min_interactions=2, **data),
            logger=LoggerSettings(wandb="off"),
            run=RunSettings(out=str(out), progress=False),
            top_k=5,
        ),
    )


@pytest.fixture(scope="module")
def table():
    return ratings()


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    table.to_csv(folder / "ratings.csv", index=False)
    return train_on(folder / "ratings.csv", folder, min_rating=4)


def had(table, user):
    return set(table.movieId[table.who == user])


def recommended(run, history, top=ITEMS):
    return [row["item"] for row in serving.recommend(run, new_user=history, top=top)[0]]


def write(path, text):
    path.write_text(text)
    return path


def test_what_was_rated_low_is_consumed(run, table, tmp_path):
    everything = set(serving.open_run(run)[0].interactions.item_names)
    assert "rare" not in everything  # below the 2-core
    out = tmp_path / "recs.csv"
    serving.recommend_all(run, out, top=ITEMS)
    of_all = pd.read_csv(out).groupby("user").item.apply(set)
    for user in ("U0", "U7"):
        rows, notes = serving.recommend(run, user=user, top=10**9)
        assert {row["item"] for row in rows} == everything - had(table, user) == of_all[user]
        assert notes == []


def test_users_for_whom_nothing_is_left_are_said(run, table, tmp_path, capsys):
    last = f"U{USERS - 1}"
    assert main(["recommend", "--run", str(run), "--user", last]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"coterie: nothing is left to recommend: all {ITEMS} items are consumed\n"
    out = tmp_path / "recs.csv"
    assert main(["recommend", "--run", str(run), "--all", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert f"{USERS - 1} users" in " ".join(told.out.split())  # a long path breaks the line
    assert told.err == (
        "coterie: nothing is left to recommend to 1 more users: they have consumed all items\n"
    )
    assert main(["recommend", "--run", str(run), "--all", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "users": USERS - 1,
        "left_out": 0,
        "finished": 1,
        "file": str(out),
    }


def test_a_history_with_every_item_leaves_nothing(run, tmp_path, capsys):
    path = write(tmp_path / "h.csv", "\n".join(["item", *TITLES]))
    assert main(["recommend", "--run", str(run), "--new-user", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert f"nothing is left to recommend: all {ITEMS} items are consumed" in told.err


@pytest.mark.parametrize("rating", ["stars", "rating"])
def test_the_least_rating_holds_for_histories(run, tmp_path, rating):
    """Who rated low is as who did not, but for what is left out."""
    rows = [("m02", 5), ("m03", 4), ("m04", 3.99), ("m05", 1), ("m06", 0), ("m07", -2)]
    text = "\n".join([f"item,{rating}", *(f"{item},{stars}" for item, stars in rows)])
    path = write(tmp_path / "h.csv", text)
    best, notes = serving.recommend(run, new_user=path, top=ITEMS)
    liked = write(tmp_path / "liked.csv", "item\nm02\nm03\n")
    alone, told = serving.recommend(run, new_user=liked, top=ITEMS)
    scores = {row["item"]: row["score"] for row in alone}
    assert {row["item"]: row["score"] for row in best} == {
        item: score for item, score in scores.items() if item not in {"m04", "m05", "m06", "m07"}
    }
    assert notes == ["4 of 6 rows count as had, not as liked: the run takes ratings of 4 or more"]
    assert "has no ratings, so all of it counts" in told[0]


def test_a_history_in_which_nothing_is_liked_is_refused(run, tmp_path):
    path = write(tmp_path / "h.csv", "item,stars\nm02,1\nm03,3\n")
    with pytest.raises(UserError, match=r"no known item of it counts as liked.*ratings of 4 or"):
        serving.recommend(run, new_user=path)
    path = write(tmp_path / "h.csv", "item,stars\nm02,5\nm03,high\n")
    with pytest.raises(UserError, match="line 3: column 'stars' is 'high', not a number"):
        serving.recommend(run, new_user=path)


@pytest.fixture(scope="module")
def of_two(run, tmp_path_factory):
    """What a history of two items is recommended."""
    plain = write(tmp_path_factory.mktemp("plain") / "plain.csv", "item\nm03\nm02\n")
    return tuple(recommended(run, plain))


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
def test_the_runs_own_columns_hold_for_histories(run, tmp_path, of_two, form):
    history = pd.DataFrame({"movieId": ["m02", "m03"], "stars": [5, 4]})
    path = tmp_path / f"h.{form}"
    if form == "parquet":
        history.to_parquet(path)
    elif form == "jsonl":
        history.to_json(path, orient="records", lines=True)
    else:
        history.to_csv(path, index=False, sep="," if form == "csv" else "\t")
    assert tuple(recommended(run, path)) == of_two


def test_the_runs_own_column_of_titles_holds_for_histories(run, tmp_path, of_two):
    films = write(tmp_path / "films.csv", "film\nFilm 02\nFilm 03\n")
    assert tuple(recommended(run, films)) == of_two


def test_the_column_that_was_taken_is_said(run, tmp_path):
    path = write(tmp_path / "h.csv", "item,movieId,title,stars\nm09,m02,Film 05,5\nm09,m03,x,5\n")
    plain = write(tmp_path / "plain.csv", "item,rating\nm02,4\nm03,4\n")
    best, notes = serving.recommend(run, new_user=path, top=ITEMS)
    assert [row["item"] for row in best] == recommended(run, plain)
    assert notes == ["the items are those of column 'movieId', not of item, title"]


def test_a_title_of_two_items_counts_for_both(run, tmp_path):
    path = write(tmp_path / "h.csv", "title\nHamlet\nFilm 07\n")
    best, notes = serving.recommend(run, new_user=path, top=ITEMS)
    found = {row["item"] for row in best}
    assert found == set(TITLES) - {"m00", "m01", "m07"}
    assert "2 items have the title 'Hamlet': all of them count" in notes
    both = write(tmp_path / "both.csv", "item\nm00\nm01\nm07\n")
    assert [row["item"] for row in best] == recommended(run, both)


def test_a_history_is_of_one_user(run, tmp_path, of_two):
    path = write(tmp_path / "h.csv", "who,item\na,m02\nb,m03\n")
    with pytest.raises(UserError, match=r"rows of 2 users \(column 'who'\)"):
        serving.recommend(run, new_user=path)
    path = write(tmp_path / "h.csv", "who,item\na,m02\na,m02\na,m03\n")
    assert tuple(recommended(run, path)) == of_two


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "low",
            r"user 'low' is in the data, but not in .*left out: \d+ of \d+ rows, rated below 4",
        ),
        ("u0", r"user 'u0' is not in the run's data .*: did you mean 'U0'\?"),
        ("nobody", r"user 'nobody' is not in the run's data"),
    ],
)
def test_who_is_not_there_is_told_why(run, capsys, name, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        serving.recommend(run, user=name)
    assert "\n" not in str(caught.value)


READ = {
    "csv": lambda path: pd.read_csv(path, dtype={"user": str, "item": str}),
    "tsv": lambda path: pd.read_csv(path, sep="\t", dtype={"user": str, "item": str}),
    "jsonl": lambda path: pd.read_json(path, lines=True, dtype={"user": str, "item": str}),
    "ndjson": lambda path: pd.read_json(path, lines=True, dtype={"user": str, "item": str}),
    "parquet": pd.read_parquet,
}


@pytest.fixture(scope="module")
def best_of_each(run):
    """Items and scores of two users, as they are recommended to one at a time."""
    best = {user: serving.recommend(run, user=user, top=3)[0] for user in ("U0", "U3")}
    return {
        user: (tuple(row["item"] for row in rows), tuple(row["score"] for row in rows))
        for user, rows in best.items()
    }


@pytest.mark.parametrize(
    "name",
    ["a.csv", "a.CSV", "a.csv.gz", "a.tsv", "a.tsv.gz", "a.jsonl", "a.jsonl.gz", "a.ndjson",
     "b.c.Parquet"],
)  # fmt: skip
def test_the_suffix_is_the_format(run, tmp_path, best_of_each, name):
    out = tmp_path / name
    served = serving.recommend_all(run, out, top=3)
    kind = name.lower().removesuffix(".gz").rpartition(".")[2]
    found = READ[kind](out)
    assert list(found.columns) == ["user", "rank", "item", "score"]
    assert found.user.nunique() == served.users == USERS - 1
    for user, (items, scores) in best_of_each.items():
        mine = found[found.user == user]
        assert tuple(mine.item) == items
        assert mine["rank"].tolist() == [1, 2, 3]
        assert mine.score.tolist() == pytest.approx(scores, abs=1e-12)
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("a.json", "JSON is written one object a line, call the file .jsonl"),
        ("a.parquet.gz", "Parquet packs by itself, leave .gz out"),
        ("a.xlsx", "names no format: let it end with .csv, .tsv,"),
        ("a.csv.zip", "names no format"),
        ("recs", "names no format"),
        (".", "is a folder"),
        ("nowhere/a.csv", "there is no folder"),
    ],
)
def test_other_files_are_refused_before_any_work(
    run, tmp_path, monkeypatch, capsys, name, complaint
):
    monkeypatch.setattr(serving, "open_run", None)  # would be called first
    out = f"{tmp_path}/{name}"
    assert main(["recommend", "--run", str(run), "--all", "--out", out]) == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_standard_output_and_the_runs_own_file_are_no_out(run, capsys):
    assert main(["recommend", "--run", str(run), "--all", "--out", "-"]) == 2
    assert "- names no format" in capsys.readouterr().err
    own = serving.open_run(run)[0].settings.data.name
    with open(own, "rb") as file:
        before = file.read()
    with pytest.raises(UserError, match="the file that the run was trained on"):
        serving.recommend_all(run, type(run)(own))
    with open(own, "rb") as file:
        assert file.read() == before


def test_the_callers_threads_and_kernels_stay(run, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with switch.kernels(False):
            serving.open_run(run)
            serving.recommend(run, user="U0")
            serving.recommend_all(run, tmp_path / "a.csv", top=1)
            serving.evaluate(run)
            with pytest.raises(UserError):
                serving.recommend(run, user="nobody")
            assert torch.get_num_threads() == 3
            assert not switch.available()
    finally:
        torch.set_num_threads(before)


def test_a_run_says_what_its_filters_left_out(run, table, capsys):
    left_out = json.loads((run / "summary.json").read_text())["left_out"]
    high = table[table.stars >= 4]
    users, items = table.who.nunique() - high.who.nunique(), 0
    assert users == 1
    assert items == table.movieId.nunique() - high.movieId.nunique()
    assert left_out == [
        f"left out: {len(table) - len(high)} of {len(table)} rows, rated below 4 "
        "(1 user has none left)",
        f"left out: 1 of {len(high)} rows, of users or items with fewer than 2 interactions "
        "(the 2-core) (1 item has none left)",
    ]


def test_training_and_data_print_what_their_filters_left_out(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")  # sentences in one line
    again = table[(table.stars > 2) & (table["at"] < 100)].iloc[:2]  # at one time
    twice = pd.concat([table, again])
    path = tmp_path / "r.csv"
    twice.assign(stars=twice.stars - 2).to_csv(path, index=False)
    train_on(path, tmp_path)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Rows")]
    low = int((twice.stars <= 2).sum())
    assert printed[0].startswith(f"Rows left out: {low} of {len(twice)} rows, rated 0 or less")
    assert printed[-1].startswith("Rows left out: 2 of ")
    assert printed[-1].endswith("rows, of an item that the user has in the same block before")
    columns = ",".join(f"{role}={name}" for role, name in COLUMNS.items())
    asked = ["data", str(path), "--data.columns", columns, "--data.min_interactions", "2"]
    assert main(asked) == 0
    told = capsys.readouterr()
    assert printed[0] in told.out.splitlines()
    assert main([*asked, "--json"]) == 0
    told = capsys.readouterr()
    assert f"coterie: {printed[0].replace('Rows', 'rows')}" in told.err.splitlines()
    assert all(json.loads(told.out))
