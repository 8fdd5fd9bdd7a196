"""Ratings read off residuals: by hand, and against a search over all columns that are possible."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assisted.attack import (
    Overheard,
    Received,
    nearest,
    read_labels,
    read_ratings,
    share_of_pattern,
    shares_of_labels,
    shares_of_ratings,
    with_means,
)

STARS = torch.arange(1.0, 6.0).double()
HALVES = torch.arange(0.5, 5.5, 0.5).double()


def residuals_of(columns, slope=2.0):
    """Residuals of columns of ratings, end to end, with the number of the column of each."""
    parts = [torch.tensor(ratings, dtype=torch.float64) for ratings in columns]
    number = torch.repeat_interleave(torch.tensor([len(part) for part in parts]))
    return torch.cat([slope * (part - part.mean()) for part in parts]), number


def read(residuals, number, scale):
    """Every cell is of another row."""
    return read_ratings(Received(residuals, torch.arange(len(number)), number), scale)


def possible(ratings, scale):
    """All columns on the scale that have the same differences, by trying every shift."""
    shifts = {round(a - b, 6) for a, b in itertools.product(scale, scale)}
    moved = [[round(rating + shift, 6) for rating in ratings] for shift in shifts]
    return [column for column in moved if all(rating in scale for rating in column)]


def expected(ratings, scale):
    """The reading by the rule in words, and whether it is the only one."""
    columns = possible(ratings, scale)
    prior = scale[0] + 0.575 * (scale[-1] - scale[0])
    means = [sum(column) / len(column) for column in columns]
    return columns, min(range(len(columns)), key=lambda place: abs(means[place] - prior))


@pytest.mark.parametrize("scale", [STARS, HALVES, torch.tensor([1.0, 2.0, 4.0, 8.0]).double()])
@settings(max_examples=60)
@given(data=st.data())
def test_the_reading_is_that_of_a_search_over_all_possible_columns(scale, data) -> None:
    values = scale.tolist()
    columns = data.draw(st.lists(st.lists(st.sampled_from(values), min_size=1), min_size=1))
    columns = [[values[0], values[-1]], *columns]  # by which the slope is known
    residuals, number = residuals_of(columns)
    found = read(residuals, number, scale)
    for place, ratings in enumerate(columns):
        mine = number == place
        readings, best = expected(ratings, values)
        assert bool(found.certain[mine].all()) == (len(readings) == 1)
        assert bool(found.certain[mine].any()) == (len(readings) == 1)
        given = [round(rating, 6) for rating in found.ratings[mine].tolist()]
        assert given in readings
        distances = [abs(sum(one) / len(one) - prior(values)) for one in readings]
        assert distances[readings.index(given)] == pytest.approx(min(distances), abs=1e-6)
        if len(readings) == 1:
            assert given == ratings == readings[best]


def prior(values):
    return values[0] + 0.575 * (values[-1] - values[0])


def test_the_prior_is_the_mean_of_the_specification() -> None:
    residuals, number = residuals_of([[1, 5], [3, 3], [2, 4], [2, 5]])
    found = read(residuals, number, STARS)
    # Of a mean nearest to 3.3: 3 of (1..5), 3 of (2, 4), 3.5 of (2, 5).
    assert found.ratings.tolist() == [1, 5, 3, 3, 2, 4, 2, 5]
    assert found.certain.tolist() == [True, True] + 6 * [False]
    found = read(*residuals_of([[1, 5], [5, 5], [1, 3], [1, 4]]), STARS)
    assert found.ratings.tolist() == [1, 5, 3, 3, 2, 4, 2, 5]


def test_the_slope_of_the_loss_is_found_out() -> None:
    columns = [[1, 5, 2], [5, 1, 4], [3, 4]]
    for slope in (2.0, 1.0):
        found = read(*residuals_of(columns, slope), STARS)
        assert found.slope == slope
        assert found.ratings.tolist()[:6] == [1, 5, 2, 5, 1, 4]


@pytest.mark.parametrize("align", ["user", "item"])
@pytest.mark.parametrize("slope", [2.0, 1.0])
def test_deviations_of_rows_and_columns_hide_nothing(align, slope) -> None:
    """Residuals of a bias model that the server has never seen, fitted by a loop."""
    generator = torch.Generator().manual_seed(3)
    row, column = (torch.rand(30, 12, generator=generator) < 0.3).nonzero(as_tuple=True)
    ratings = torch.randint(1, 6, (len(row),), generator=generator).double()
    user, item = (row, column) if align == "user" else (column, row)
    rest = ratings - ratings.mean()
    for place in (item, user):
        for group in place.unique():
            mine = place == group
            rest[mine] -= rest[mine].sum() / (mine.sum() + 5)
    found = read_ratings(Received(slope * rest, row, column, align), STARS)
    assert found.slope == slope
    assert found.certain.all()
    assert torch.equal(found.ratings, ratings)
    other = "item" if align == "user" else "user"
    assert not read_ratings(Received(slope * rest, row, column, other), STARS).certain.all()


def test_one_number_hides_nothing() -> None:
    """Of columns from which by themselves nothing follows, all is read."""
    columns, mean = [[1, 5], [3, 4], [2], [2, 2]], 2.75
    ratings, number = (
        torch.tensor([one for each in columns for one in each]).double(),
        residuals_of(columns)[1],
    )
    received = Received(2.0 * (ratings - mean), torch.arange(len(number)), number)
    apart, found = (read_ratings(replace(received, alike=alike), STARS) for alike in (False, True))
    assert torch.equal(found.ratings, ratings)
    assert found.certain.all()
    assert apart.certain.tolist() == [True, True] + 5 * [False]


def test_what_fits_nothing_is_read_with_the_prior() -> None:
    residuals = torch.tensor([-2.0, 0.1, 2.7, -9.0]).double()
    found = read(residuals, torch.zeros(4, dtype=torch.int64), STARS)
    assert found.slope == 2.0
    assert found.ratings.tolist() == [2, 3, 5, 1]  # 2.3, 3.35, 4.65, -1.2
    assert not found.certain.any()


def test_with_the_means_known_every_rating_is_read() -> None:
    columns = [[1, 2, 2], [4, 5], [3]]
    residuals, number = residuals_of(columns)
    means = torch.tensor([5 / 3, 4.5, 3.0]).double()[number]
    assert with_means(residuals, means, STARS, 2.0).tolist() == [1, 2, 2, 4, 5, 3]


def test_labels_are_signs() -> None:
    assert read_labels(torch.tensor([0.2, -0.1, 0.9])).tolist() == [1, 0, 1]


def test_the_nearest_value_is_found_as_by_hand() -> None:
    values = torch.linspace(-1, 7, 401).double()
    scale = torch.tensor([1.0, 2.0, 4.0]).double()
    distance = (values[:, None] - scale).abs()
    assert torch.equal((nearest(values, scale) - values).abs(), distance.min(1).values)


def overheard(columns, draws=None, held=None):
    residuals, number = residuals_of(columns)
    ratings = torch.tensor([float(r) for column in columns for r in column]).double()
    base = torch.cat([torch.full((len(c),), sum(c) / len(c)) for c in columns]).double()
    received = residuals[None] if draws is None else draws
    rows = torch.arange(len(ratings))
    return Overheard(rows, number, received, ratings, base, held or len(ratings))


def test_shares_are_counted_by_hand() -> None:
    heard = [overheard([[1, 5, 3, 4], [4, 4]]), overheard([[2, 5], [5, 1]], held=8)]
    assert shares_of_ratings(heard, 1, STARS) == {
        "certain": 6 / 10,  # (1 5 3 4) and (5 1)
        "guessed": 8 / 10,  # and (2 5) by its mean; (4 4) is read as (3 3)
        "known": 1.0,
        "frequent": 3 / 10,  # 5, or 4
        "rounded": 3 / 10,  # 3 of 3.25, 4 and 4; of 3.5 and 3 none
        "weighed": 1.0,  # nothing hides anything
        "unheard": 5 / 10,  # of six ratings around 3 two are 1; 4 and 4; of 2 and 5 one
    }
    assert share_of_pattern(heard) == 10 / 14


def test_a_certain_reading_that_noise_made_wrong_does_not_count() -> None:
    one = overheard([[2, 3]], torch.tensor([[-4.0, 4.0]]).double())
    found = shares_of_ratings([one], 1, STARS)
    assert found["certain"] == found["guessed"] == 0


def test_draws_are_averaged() -> None:
    one = overheard([[1, 5, 2, 4], [5, 1, 2, 2]])
    noise = torch.tensor([[3.0], [-3.0], [9.0]]).double().expand(3, 8)
    one = overheard([[1, 5, 2, 4], [5, 1, 2, 2]], one.residuals + noise)
    assert shares_of_ratings([one], 1, STARS)["known"] < 1
    assert shares_of_ratings([one], 2, STARS)["known"] == 1
    liked = (one.residuals[0] > 3).double()
    labels = Overheard(one.rows, one.columns, one.residuals, liked, one.base, 8)
    assert shares_of_labels([labels], 2)["labels"] == 1
    assert shares_of_labels([labels], 3)["labels"] < 1
    assert shares_of_labels([labels], 3)["frequent"] == 5 / 8


def test_nothing_received_gives_shares_of_0() -> None:
    nothing = torch.empty(0).double()
    empty = Overheard(nothing.long(), nothing.long(), nothing[None], nothing, nothing, 4)
    assert set(shares_of_ratings([empty], 1, STARS).values()) == {0.0}
    assert set(shares_of_labels([empty], 1).values()) == {0.0}
    assert share_of_pattern([empty]) == 0
