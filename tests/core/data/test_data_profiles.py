"""Profiles of users: the same thirty columns of two layouts, and what is refused."""

import pytest
import torch

from coterie.core.data.interactions.features import AGES, OCCUPATIONS_1M, OCCUPATIONS_100K
from coterie.core.data.sources.readers import read_ml_1m, read_ml_100k
from coterie.core.data.sources.sample import generate
from coterie.core.errors import UserError


def columns(features, row):
    """Names of a user's columns."""
    return [features.names[column] for column in features.values[row].nonzero().flatten()]


def ml_100k(folder, users):
    ratings = "".join(f"{line.split('|')[0]}\t7\t3\t5\n" for line in reversed(users.splitlines()))
    (folder / "u.data").write_text(ratings)
    (folder / "u.user").write_text(users)
    return read_ml_100k(folder)


def ml_1m(folder, users):
    ratings = "".join(f"{line.split('::')[0]}::7::3::5\n" for line in reversed(users.splitlines()))
    (folder / "ratings.dat").write_text(ratings)
    (folder / "users.dat").write_text(users)
    return read_ml_1m(folder)


def test_users_of_ml_100k(tmp_path):
    data = ml_100k(tmp_path, "1|24|M|technician|85711\n2|7|F|administrator|x\n9|56|M|none|y\n")
    assert data.user_names == ["9", "2", "1"]
    assert data.user_features.values.dtype == torch.float32
    assert columns(data.user_features, 0) == ["age 56+", "gender M", "occupation none"]
    assert columns(data.user_features, 1) == ["age 0-17", "gender F", "occupation administrator"]
    assert columns(data.user_features, 2) == ["age 18-24", "gender M", "occupation technician"]


def test_users_of_ml_1m(tmp_path):
    data = ml_1m(tmp_path, "1::F::1::10::48067\n2::M::56::16::70072\n3::M::25::0::5\n")
    assert data.user_names == ["3", "2", "1"]
    assert columns(data.user_features, 0) == ["age 25-34", "gender M", "occupation other"]
    assert columns(data.user_features, 1) == ["age 56+", "gender M", "occupation self-employed"]
    assert columns(data.user_features, 2) == ["age 0-17", "gender F", "occupation K-12 student"]


@pytest.mark.parametrize("age", range(1, 80))
def test_years_and_groups_of_years_end_in_the_same_column(tmp_path, age):
    group = max(first for first in (1, 18, 25, 35, 45, 50, 56) if first <= age)
    by_year = ml_100k(tmp_path, f"1|{age}|F|writer|x\n").user_features
    by_group = ml_1m(tmp_path, f"1::F::{group}::20::x\n").user_features
    assert torch.equal(by_year.values, by_group.values)
    bounds = AGES[int(by_year.values[0, :7].argmax())].replace("+", "-999").split("-")
    assert int(bounds[0]) <= age <= int(bounds[1])


def test_thirty_columns_of_which_nine_are_called_the_same(tmp_path):
    first = ml_100k(tmp_path, "1|24|M|writer|x\n").user_features.names
    second = ml_1m(tmp_path, "1::F::1::10::x\n").user_features.names
    assert len(first) == len(second) == len(set(first)) == len(set(second)) == 30
    assert first[:9] == second[:9]
    assert first[9:] == [f"occupation {name}" for name in OCCUPATIONS_100K]
    assert second[9:] == [f"occupation {name}" for name in OCCUPATIONS_1M]


def test_a_user_without_a_profile_has_zeros_and_no_file_gives_none(tmp_path):
    data = ml_100k(tmp_path, "1|24|M|writer|x\n2|24|M|writer|x\n")
    (tmp_path / "u.user").write_text("2|24|M|writer|x\n")
    assert read_ml_100k(tmp_path).user_features.values.sum(1).tolist() == [3.0, 0.0]
    (tmp_path / "u.user").unlink()
    assert read_ml_100k(tmp_path).user_features is None
    assert data.user_features is not None


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("2|24|X|writer|x", "line 2: column 'gender' is 'X'"),
        ("2|24|M|pilot|x", "line 2: column 'occupation' is 'pilot'"),
        ("2|old|M|writer|x", "line 2: column 'age' is 'old', not a whole number"),
        ("2|24|M|writer", "line 2: expected 5 columns, found 4"),
    ],
)
def test_malformed_profiles_name_file_and_line(tmp_path, line, what):
    with pytest.raises(UserError, match=r"u\.user, " + what):
        ml_100k(tmp_path, f"1|24|M|writer|x\n{line}\n")


def test_the_sample_has_profiles_that_tell_something_of_tastes():
    data = generate()
    assert data.user_features.values.shape == (data.n_users, 30)
    assert torch.equal(data.user_features.values, generate().user_features.values)
    assert data.user_features.values.sum(1).unique().tolist() == [3.0]
    # Users of one occupation watch more alike than others: compare counts of main genres.
    names = sorted({row[0] for row in data.genres})
    genre = torch.tensor([names.index(row[0]) for row in data.genres])[data.item]
    counts = torch.zeros(data.n_users, len(names)).index_put_(
        (data.user, genre), torch.ones(len(data)), accumulate=True
    )
    shares = counts / counts.sum(1, keepdim=True)
    occupation = data.user_features.values[:, 9:].argmax(1)
    shares, occupation = shares[occupation < 9], occupation[occupation < 9]
    distance = torch.cdist(shares, shares)
    alike = occupation[:, None] == occupation
    assert distance[alike].mean() < 0.85 * distance[~alike].mean()
