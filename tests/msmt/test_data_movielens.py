"""MovieLens 1M as scenarios of users."""

import gzip
from collections import Counter

import numpy as np
import pytest
import torch

from coterie.core.data.interactions.features import GENRES
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.data.make import make_task
from coterie.msmt.settings import ScenarioData

KEY = Key.from_seed(2)
USERS = {  # gender, first year of the age group, occupation, zip
    1: ("F", 1, 10, "48067"),
    2: ("M", 56, 16, "70072"),
    3: ("M", 25, 15, "H2X1Y4"),
    4: ("F", 25, 7, "02460"),
}
FILMS = {
    1: ("Toy Story (1995)", "Animation|Children's|Comedy"),
    2: ("Night (1931)", "Drama"),
    5: ("No year", "Western|Drama"),
    9: ("Late (2000)", "Film-Noir"),
}


@pytest.fixture
def folder(tmp_path):
    here = tmp_path / "ml-1m"
    here.mkdir()
    rng = np.random.default_rng(0)
    rows = [(u, i, int(rng.integers(1, 6)), 0) for u in USERS for i in FILMS for _ in range(5)]
    text = "".join("::".join(map(str, row)) + "\n" for row in rows)
    (here / "ratings.dat.gz").write_bytes(gzip.compress(text.encode()))
    users = "".join(f"{u}::{'::'.join(map(str, known))}\n" for u, known in USERS.items())
    (here / "users.dat").write_text(users)
    films = "".join(f"{i}::{title}::{genres}\n" for i, (title, genres) in FILMS.items())
    (here / "movies.dat").write_text(films, encoding="latin-1")
    here.joinpath("rows").write_text(repr(rows))
    return tmp_path


def read(root, **more):
    return make_task(ScenarioData(name="ml-1m", root=str(root), **more), KEY)


def samples(task):
    clients = task.clients
    parts = (clients.train, clients.valid, clients.test)
    return {n: torch.cat([p.samples[n] for p in parts]) for n in clients.train.samples}


def expected(folder, scenario):
    """Count what samples there must be: scenario, values of the fields, genres, labels."""
    found = Counter()
    for user, item, rating, _ in eval(folder.joinpath("ml-1m", "rows").read_text()):
        gender, age, occupation, code = USERS[user]
        title, genres = FILMS[item]
        year = title[-5:-1] if title.endswith(")") else None
        told = {"gender": gender, "age": {1: "0-17", 25: "25-34", 56: "56+"}[age]}
        where = told.pop(scenario)
        first, decade = genres.split("|")[0], year and year[:3]
        region = code[0] if code[0].isdigit() else None
        flags = tuple(name in genres.split("|") for name in GENRES)
        fields = (user, item, *told.values(), occupation, region, first, decade)
        found[where, fields, flags, (rating >= 4, rating == 5)] += 1
    return found


@pytest.mark.parametrize("scenario", ["gender", "age"])
def test_samples_are_the_joined_ratings(folder, scenario):
    task = read(folder, scenario=scenario)
    wanted = expected(folder, scenario)
    columns = list(zip(*(fields for _, fields, _, _ in wanted), strict=True))
    held = samples(task)
    # Ids are numbers of sorted values; a field of one missing value has id 0 there.
    order = [list(USERS), list(FILMS)]
    if scenario == "gender":
        order += [["0-17", "25-34", "56+"]]
    else:
        order += [["F", "M"]]
    order += [[7, 10, 15, 16], ["0", "4", "7"]]
    order += [[name for name in GENRES if name in columns[-2]], ["193", "199", "200"]]
    assert task.schema.vocabularies == tuple(len(words) + 1 for words in order)
    found = Counter()
    for ids, numbers, place, labels in zip(
        *(held[name].tolist() for name in ("ids", "numbers", "scenario", "labels")), strict=True
    ):
        words = [None if i == 0 else row[i - 1] for row, i in zip(order, ids, strict=True)]
        flags, both = tuple(map(bool, numbers)), tuple(map(bool, labels))
        found[task.schema.scenarios[place], tuple(words), flags, both] += 1
    # Users and films are numbered by first appearance, which is ascending here.
    assert found == wanted


def test_the_form(folder):
    task = read(folder)
    assert task.schema.tasks == ("like", "love")
    assert task.schema.funnel
    assert task.schema.scenarios == ("F", "M")
    assert task.schema.n_numbers == 18
    assert read(folder, scenario="age").schema.scenarios == ("0-17", "25-34", "56+")
    assert "missing values (id 0): zip_region 20, decade 20" in task.notes


def test_every_user_has_the_shares(folder):
    task = read(folder, valid=0.2, test=0.3)
    parts = (task.clients.train, task.clients.valid, task.clients.test)
    for part, count in zip(parts, (10, 4, 6), strict=True):
        users = part.samples["ids"][:, 0].bincount().tolist()
        assert users == [0, count, count, count, count]


def test_the_draw_is_by_the_key(folder):
    settings = ScenarioData(name="ml-1m", root=str(folder))
    first, again, other = (
        make_task(settings, key).clients.test.samples["ids"] for key in (KEY, KEY, Key.from_seed(3))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_missing_files_and_users_are_named(folder):
    path = folder / "ml-1m" / "users.dat"
    text = path.read_text()
    path.write_text(text.replace("3::M", "33::M"))
    with pytest.raises(UserError, match=r"users.dat does not know user 3: fetch"):
        read(folder)
    path.unlink()
    with pytest.raises(UserError, match=r"has no users.dat"):
        read(folder)
    path.write_text(text)
    (folder / "ml-1m" / "movies.dat").unlink()
    with pytest.raises(UserError, match=r"has no movies.dat"):
        read(folder)


@pytest.mark.real_data
def test_the_public_set(data_root):
    if not (data_root / "ml-1m").is_dir():
        pytest.skip(f"needs ml-1m in {data_root}")
    task = read(data_root)
    held = samples(task)
    assert len(held["labels"]) == 1000209
    assert held["labels"].long().sum(0).tolist() == [348971 + 226310, 226310]
    assert task.schema.vocabularies[0] == 6041
    shares = [int(p.lengths.sum()) / 1000209 for p in (task.clients.valid, task.clients.test)]
    assert shares == pytest.approx([0.1, 0.1], abs=0.002)
