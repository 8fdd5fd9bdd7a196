"""Rated cells of K organisations against a naive loop; splits, partitions and their errors."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.core.data.interactions.cells import cut, rated
from coterie.core.data.interactions.column_partitions import (
    Partition,
    by_genre,
    by_source,
    common_rows,
    count_parts,
    partition_columns,
    split_cells,
    uniform,
    whole,
)
from coterie.core.data.interactions.features import GENRES, genre_table
from coterie.core.data.interactions.interactions import TEST, TRAIN, VALID, Features, Interactions
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(3)
USERS, ITEMS = 9, 12


def table(pairs, ratings=None, **more):
    """Interactions of (user, item) pairs, rated 1, 2, 3, … unless ratings are given."""
    user, item = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    ratings = torch.arange(1.0, len(pairs) + 1) if ratings is None else torch.tensor(ratings)
    names = [str(n) for n in range(ITEMS)]
    return Interactions(
        user,
        item,
        torch.zeros_like(user),
        ratings,
        names[:USERS],
        names,
        None,
        None,
        "test",
        **more,
    )


def drawn(count, key=KEY):
    """Distinct pairs of users and items in random order."""
    place = torch.argsort(key.bits(torch.arange(USERS * ITEMS)))[:count]
    return list(zip((place // ITEMS).tolist(), (place % ITEMS).tolist(), strict=True))


def described(domain):
    """Every cell of a domain in global numbers, by part."""
    found = {}
    for name in ("train", "valid", "test"):
        cells = getattr(domain, name)
        assert cells.n_rows == len(domain.rows)
        assert cells.n_columns == len(domain.columns)
        rows = domain.rows[cells.rows].tolist()
        columns = domain.columns[cells.columns.values].tolist()
        found[name] = list(zip(rows, columns, cells.values.tolist(), strict=True))
    return found


def naive(data, alignment, partition, part):
    """The same by a loop over ratings."""
    names = ("train", "valid", "test")
    found = [{name: [] for name in names} for _ in partition.names]
    columns = zip(data.user.tolist(), data.item.tolist(), strict=True)
    for (user, item), rating, one in zip(columns, data.rating, part.tolist(), strict=True):
        row, column = (user, item) if alignment == "user" else (item, user)
        domain = found[int(partition.of_column[column])]
        domain[names[one]].append((row, column, float(rating)))
    return [{name: sorted(cells) for name, cells in domain.items()} for domain in found]


@pytest.mark.parametrize("alignment", ["user", "item"])
@given(seed=st.integers(0, 1000), n_domains=st.integers(1, 4))
@settings(max_examples=30)
def test_cut_equals_a_naive_loop(alignment, seed, n_domains):
    key = Key.from_seed(seed)
    data = table(drawn(80, key))
    part = split_cells(len(data), key, 0.2, 0.2)
    partition = partition_columns(data, alignment, "uniform", part, key, n_domains)
    domains = cut(data, alignment, partition, part)
    assert [described(domain) for domain in domains] == naive(data, alignment, partition, part)
    n_rows, n_columns = (USERS, ITEMS) if alignment == "user" else (ITEMS, USERS)
    assert all(domain.rows.tolist() == list(range(n_rows)) for domain in domains)
    assert sorted(torch.cat([d.columns for d in domains]).tolist()) == list(range(n_columns))
    assert [domain.name for domain in domains] == list(partition.names)


def test_item_alignment_is_the_transposed_matrix():
    data = table(drawn(60))
    part = split_cells(60, KEY)
    user, item = (cut(data, way, whole(n), part)[0] for way, n in (("user", 12), ("item", 9)))
    assert torch.equal(user.train.transposed().to_dense(), item.train.to_dense())
    assert torch.equal(user.test.to_dense().T, item.test.to_dense())


def test_cells_of_a_domain_are_copies():
    data = table(drawn(80))
    part = split_cells(80, KEY)
    for domain in cut(data, "user", uniform(ITEMS, 3, KEY), part):
        for cells in (domain.train, domain.test):
            assert cells.values.untyped_storage().nbytes() == 4 * len(cells)
            assert cells.columns.values.untyped_storage().nbytes() == 8 * len(cells)


@pytest.mark.parametrize("alignment", ["user", "item"])
def test_features_follow_rows_and_columns(alignment):
    profile = Features(torch.arange(2.0 * USERS).reshape(USERS, 2), ["a", "b"])
    genres = [[GENRES[n % 18]] for n in range(ITEMS)]
    data = replace(table(drawn(100)), genres=genres, user_features=profile)
    n_columns = ITEMS if alignment == "user" else USERS
    partition = uniform(n_columns, 3, KEY)
    for domain in cut(data, alignment, partition, torch.full((100,), TRAIN)):
        users, items = domain.rows, domain.columns
        of_users, of_items = domain.row_features, domain.column_features
        if alignment == "item":
            users, items, of_users, of_items = items, users, of_items, of_users
        assert of_users.tolist() == [[2.0 * u, 2.0 * u + 1] for u in users.tolist()]
        assert of_items.argmax(1).tolist() == [i % 18 for i in items.tolist()]
        assert of_items.sum(1).tolist() == [1.0] * len(items)


def test_there_are_no_features_where_nothing_is_known():
    data = replace(table(drawn(100)), genres=[["Gardening"]] * ITEMS)
    domain = cut(data, "user", whole(ITEMS), torch.full((100,), TRAIN))[0]
    assert domain.row_features is None
    assert domain.column_features is None


@given(n=st.integers(10, 500), seed=st.integers(0, 1000))
def test_split_counts_are_exact_and_validation_leaves_the_test_alone(n, seed):
    key = Key.from_seed(seed)
    part, without = split_cells(n, key), split_cells(n, key, valid=0.0)
    counts = part.bincount(minlength=3).tolist()
    assert counts[TEST] == n - int(n * 0.9)
    assert counts[VALID] == round(n * 0.1)
    assert sum(counts) == n
    assert torch.equal(part == TEST, without == TEST)
    assert not bool((without == VALID).any())


def test_split_is_uniform_and_another_for_another_key():
    tested = torch.stack([split_cells(50, Key.from_seed(s), 0.2) == TEST for s in range(400)])
    assert tested.sum(1).tolist() == [10] * 400
    # Each cell is in the test 80 times in 400, with a standard deviation of 8.
    assert stats.chisquare(tested.sum(0).numpy()).pvalue > 1e-3
    assert len(torch.unique(tested.long(), dim=0)) == 400


def test_cells_with_ids_are_split_alike_in_any_order():
    ids = torch.arange(100) * 7 + 3
    order = torch.argsort(KEY.bits(torch.arange(100)))
    assert torch.equal(split_cells(ids, KEY)[order], split_cells(ids[order], KEY))


@pytest.mark.parametrize(("n", "test", "valid"), [(100, -0.1, 0.1), (100, 0.5, 0.5), (1, 0.5, 0.0)])
def test_impossible_splits_are_refused(n, test, valid):
    with pytest.raises(UserError, match="to train"):
        split_cells(n, KEY, test, valid)


def test_common_rows_are_nested_and_of_exact_number():
    found = [common_rows(101, fraction, KEY) for fraction in (0.0, 0.25, 0.5, 1.0)]
    assert [int(mask.sum()) for mask in found] == [0, 25, 50, 101]
    assert all(bool((small <= large).all()) for small, large in pairwise(found))
    assert not torch.equal(found[2], common_rows(101, 0.5, Key.from_seed(4)))
    with pytest.raises(UserError, match=r"fraction of 1\.5"):
        common_rows(5, 1.5, KEY)


@given(n=st.integers(1, 60), data=st.data())
def test_uniform_sizes(n, data):
    k = data.draw(st.integers(1, n))
    sizes = uniform(n, k, KEY).of_column.bincount(minlength=k).tolist()
    assert sorted(sizes) == sorted([n // k] * (k - n % k) + [n // k + 1] * (n % k))
    assert uniform(n, k, KEY, rest="last").of_column.bincount(minlength=k).tolist() == [
        *[n // k] * (k - 1),
        n // k + n % k,
    ]


def test_uniform_is_random_and_the_key_decides():
    one, same, other = (uniform(40, 4, Key.from_seed(s)).of_column for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    firsts = Counter(int(uniform(4, 4, Key.from_seed(s)).of_column[0]) for s in range(400))
    assert stats.chisquare([firsts[k] for k in range(4)]).pvalue > 1e-3


@pytest.mark.parametrize("k", [0, 6])
def test_more_domains_than_columns_are_refused(k):
    with pytest.raises(UserError, match=f"5 columns cannot be shared out among {k} domains"):
        uniform(5, k, KEY)


def test_genre_table_takes_both_spellings_and_drops_what_is_not_of_the_18():
    found = genre_table([["Children's", "War"], ["Children", "IMAX"], [], ["unknown"]])
    assert found.shape == (4, 18)
    assert found[0].nonzero().flatten().tolist() == [3, 16]
    assert found[1].nonzero().flatten().tolist() == [3]
    assert found[2:].sum() == 0


ALL_GENRES = [[name] for name in GENRES]


def test_an_item_goes_to_one_of_its_genres_each_as_often():
    items = [*ALL_GENRES, ["War", "Action", "Drama"], ["unknown"]]
    found = [by_genre(items, Key.from_seed(seed)).of_column for seed in range(540)]
    assert all(row[:18].tolist() == list(range(18)) for row in found)
    of_three = Counter(int(row[18]) for row in found)
    assert set(of_three) == {GENRES.index(name) for name in ("War", "Action", "Drama")}
    assert stats.chisquare(list(of_three.values())).pvalue > 1e-3
    of_none = Counter(int(row[19]) for row in found)
    assert stats.chisquare([of_none[k] for k in range(18)]).pvalue > 1e-3


def test_domains_are_of_the_genres_that_occur():
    found = by_genre([["War", "x"], ["Comedy", "Children"], [], ["Comedy"]] * 3, KEY)
    assert found.names == ("Children's", "Comedy", "War")
    assert found.of_column[[0, 3]].tolist() == [2, 1]
    with pytest.raises(UserError, match="no item has one of the genres Action, "):
        by_genre([["x"], []], KEY)


def test_an_items_genre_does_not_depend_on_other_items():
    several = [["War", "Action", "Drama"], ["Comedy", "Crime"]] * 10
    alone = by_genre([*ALL_GENRES, *several], KEY).of_column
    other = by_genre([*ALL_GENRES, *several[:7], *[["Western", "Horror"]] * 50], KEY).of_column
    assert torch.equal(alone[:25], other[:25])


def test_items_are_drawn_anew_until_each_domain_has_cells_to_train_on_and_to_test():
    # Two items share Action and War; only one way round gives each what it needs.
    items = [*ALL_GENRES[1:16], *ALL_GENRES[17:], ["Action", "War"], ["Action", "War"]]
    needed = torch.ones(len(items), 2, dtype=torch.int64)
    for seed in range(20):
        found = by_genre(items, Key.from_seed(seed), needed).of_column[-2:].tolist()
        assert sorted(found) == [GENRES.index("Action"), GENRES.index("War")]
    needed[-1, 1] = 0  # no cell to test: Action or War is left without, however they are drawn
    with pytest.raises(UserError, match=r"domain '(Action|War)' stayed without ratings"):
        by_genre(items, KEY, needed)


def test_parts_of_columns_are_counted():
    column, part = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([TRAIN, TEST, TRAIN, TRAIN, VALID])
    assert count_parts(column, part, (TRAIN, TEST), 4).tolist() == [[1, 1], [0, 0], [2, 0], [0, 0]]


def test_the_sources_own_domains():
    found = by_source(["music", "book", "music"], "shop")
    assert found.names == ("book", "music")
    assert found.of_column.tolist() == [1, 0, 1]
    with pytest.raises(UserError, match="shop does not say which organisation"):
        by_source(None, "shop")


@pytest.mark.parametrize("how", ["genre", "source"])
def test_users_have_no_genres_and_no_source(how):
    data = table(drawn(30), domains=["a"] * ITEMS)
    with pytest.raises(UserError, match=f"a partition by {how} shares out items"):
        partition_columns(data, "item", how, split_cells(30, KEY), KEY)


def test_genres_are_needed_for_a_partition_by_genre():
    with pytest.raises(UserError, match="test has no genres"):
        partition_columns(table(drawn(30)), "user", "genre", split_cells(30, KEY), KEY)


def test_ratings_are_needed():
    data = replace(table(drawn(30)), rating=None)
    for call in (
        lambda: rated(data),
        lambda: cut(data, "user", whole(ITEMS), split_cells(30, KEY)),
    ):
        with pytest.raises(UserError, match="test has no ratings"):
            call()


def test_ratings_outside_the_scale_are_refused():
    data = table([(0, 0), (1, 1)], [5.0, 5.5])
    assert rated(data, (0.5, 5.5)) is data
    for scale in ((1, 5), (5.5, 6)):
        with pytest.raises(UserError, match=r"test has a rating of 5.* outside the scale"):
            rated(data, scale)


def test_the_first_rating_of_a_pair_is_kept():
    data = rated(table([(0, 1), (2, 2), (0, 1), (2, 2), (1, 0)]))
    assert data.rating.tolist() == [1.0, 2.0, 5.0]
    assert data.item.tolist() == [1, 2, 0]


def test_a_pair_that_is_there_twice_is_refused_by_the_cut():
    data = table([(0, 1), (2, 2), (0, 1)])
    with pytest.raises(ValueError, match="row 0 and column 1 is there twice"):
        cut(data, "user", whole(ITEMS), torch.full((3,), TRAIN))


def test_a_domain_without_ratings_to_train_on_is_named():
    data = table(drawn(80))
    part = torch.where(data.item < 6, TRAIN, TEST)
    partition = Partition((torch.arange(ITEMS) >= 6).long(), ("low", "high"))
    with pytest.raises(UserError, match="domain 'high' of test has no rating to train on"):
        cut(data, "user", partition, part)


def test_a_partition_of_other_columns_is_refused():
    with pytest.raises(ValueError, match="do not fit"):
        cut(table(drawn(30)), "item", whole(ITEMS), split_cells(30, KEY))


def test_features_and_domains_follow_their_numbers():
    profile = Features(torch.arange(float(USERS))[:, None], ["number"])
    data = table([(5, 3), (2, 7)], user_features=profile, domains=[f"d{n}" for n in range(ITEMS)])
    found = data.renumbered()
    assert found.user_features.values.tolist() == [[5.0], [2.0]]
    assert found.domains == ["d3", "d7"]
    assert data.take(torch.tensor([1])).user_features is profile
