"""Who gets which ratings: parts of the split, likes, names of rows."""

import pytest
import torch

from coterie.assisted.data import names, share_out
from coterie.assisted.settings import DomainSettings
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.tensors.keys import Key

USERS, ITEMS = 20, 12
STARS = torch.tensor([1.0, 3.0, 3.5, 4.0, 5.0])


def ratings(skipped=()):
    """Every user's rating of every item, but for some pairs; items are of three organisations."""
    pairs = [(u, i) for u in range(USERS) for i in range(ITEMS) if (u, i) not in skipped]
    user, item = torch.tensor(pairs).T
    stars = STARS[(user * 7 + item * 3) % len(STARS)]
    names = [str(number) for number in range(max(USERS, ITEMS))]
    domains = [f"d{number % 3}" for number in range(ITEMS)]
    made = Interactions(user, item, user, stars, names[:USERS], names[:ITEMS], None, None, "made")
    return type(made)(**vars(made) | {"domains": domains})


def shared(released=False, likes=False, given=None, **data):
    settings = DomainSettings(domains="source", **data)
    data = ratings() if given is None else given
    return share_out(data, settings, 0, "source", is_binary=lambda _: likes, released=released).each


def cells(one, part):
    found = getattr(one, part)
    return set(zip(found.rows.tolist(), found.columns.values.tolist(), strict=True))


def test_the_three_parts_are_apart_and_together_all() -> None:
    for one in shared():
        train, valid, test = (cells(one, part) for part in ("train", "valid", "test"))
        assert not train & valid
        assert not train & test
        assert not valid & test
        assert len(train | valid | test) == USERS * ITEMS / 3
        assert len(valid) > 0 < len(test)


def test_released_trains_on_all_but_the_test_and_validates_on_the_test() -> None:
    for plain, released in zip(shared(), shared(released=True), strict=True):
        assert cells(released, "test") == cells(plain, "test") == cells(released, "valid")
        assert cells(released, "train") == cells(plain, "train") | cells(plain, "valid")


@pytest.mark.parametrize("released", [False, True])
def test_a_rating_that_equals_the_threshold_is_liked_as_released_only(released) -> None:
    plain, likes = shared(released), shared(released, likes=True)
    for stars, liked in zip(plain, likes, strict=True):
        for part in ("train", "valid", "test"):
            truth, found = getattr(stars, part).values, getattr(liked, part).values
            assert torch.equal(found, (truth >= 3.5 if released else truth > 3.5).float())
            assert released or bool((truth == 3.5).any()) or part != "train"


def test_organisations_know_those_who_rated_something_of_theirs() -> None:
    given = ratings(skipped={(4, item) for item in range(0, ITEMS, 3)})  # nothing of d0
    first, second, _ = shared(given=given)
    assert first.train.n_rows == USERS - 1
    assert second.train.n_rows == USERS
    assert 4 not in first.domain.rows.tolist()
    assert set(first.rows.tolist()) < set(second.rows.tolist())


def test_only_common_rows_have_the_same_name_everywhere() -> None:
    common, secret = torch.arange(9) < 4, Key.from_seed(1)
    one, other = (names(common, number, secret) for number in (0, 1))
    assert torch.equal(one[:4], other[:4])
    assert len(set(one.tolist()) | set(other.tolist())) == 4 + 2 * 5
    assert not torch.isin(names(common, 0, Key.from_seed(2)), one).any()
