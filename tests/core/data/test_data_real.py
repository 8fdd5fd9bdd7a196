"""Published counts, on the real files."""

from collections import Counter

import pytest

from coterie.core.data.interactions.cells import cut, rated
from coterie.core.data.interactions.column_partitions import partition_columns, split_cells
from coterie.core.data.interactions.features import GENRES
from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.interactions.splits import split_block, temporal_blocks
from coterie.core.data.sources.catalogue import list_data, load
from coterie.core.data.sources.review_readers import read_douban
from coterie.core.errors import UserError
from coterie.core.registry.data_sets import DATA_SETS
from coterie.core.tensors.keys import Key

pytestmark = pytest.mark.real_data


def loaded(name, data_root):
    if not (data_root / name).is_dir():
        pytest.skip(f"needs {name} in the folder of the public data sets")
    return load(name, data_root)


def stream_of(name, data_root):
    return temporal_blocks(k_core(loaded(name, data_root), DATA_SETS[name].core))


def column(stream, name):
    return [row[name] for row in stream.statistics()]


def test_ml_100k_blocks_equal_table_1(data_root):
    stream = stream_of("ml-100k", data_root)
    assert column(stream, "interactions") == [58_771, 13_060, 13_060, 13_062]
    assert column(stream, "users") == [587, 697, 827, 943]
    assert column(stream, "items") == [1136, 1146, 1148, 1152]
    sparsity = [round(100 * value, 2) for value in column(stream, "sparsity")]
    assert sparsity == [91.19, 98.36, 98.62, 98.80]


@pytest.mark.parametrize("order", ["random", "chronological"])
def test_ml_100k_splits_equal_the_public_ones(data_root, order):
    """Users with a row and interactions, of train, valid and test, in the authors' pickles."""
    stream = stream_of("ml-100k", data_root)
    counts = []
    for block in stream.blocks:
        splits = split_block(stream, block, order, 0)
        for part in (splits.train, splits.valid, splits.test):
            counts.append((int((part.lengths > 0).sum()), part.values.numel()))
    assert counts == [
        *[(587, 46_552), (586, 6_078), (586, 6_141)],
        *[(217, 10_298), (199, 1_371), (199, 1_391)],
        *[(238, 10_274), (222, 1_382), (222, 1_404)],
        *[(207, 10_284), (190, 1_384), (190, 1_394)],
    ]


def test_ml_100k_titles_and_genres(data_root):
    data = loaded("ml-100k", data_root)
    at = data.item_names.index("1")
    assert data.titles[at] == "Toy Story (1995)"
    assert data.genres[at] == ["Animation", "Children's", "Comedy"]
    assert data.titles[data.item_names.index("543")] == "Misérables, Les (1995)"


def test_ml_100k_ratings_of_eighteen_genres(data_root):
    data, key = rated(loaded("ml-100k", data_root), (1, 5)), Key.from_seed(0)
    part = split_cells(len(data), key)
    domains = cut(data, "user", partition_columns(data, "user", "genre", part, key), part)
    assert tuple(domain.name for domain in domains) == GENRES
    assert all(min(len(d.train), len(d.test)) > 0 for d in domains)
    counts = [sum(len(getattr(d, name)) for d in domains) for name in ("train", "valid", "test")]
    assert counts == [80_000, 10_000, 10_000]
    assert sum(len(d.columns) for d in domains) == 1682
    assert {len(d.rows) for d in domains} == {943}
    # Items with that genre hold at least the items of its domain.
    assert all(bool((d.column_features[:, k] == 1).all()) for k, d in enumerate(domains[:7]))


@pytest.mark.parametrize(
    ("name", "ages", "women"),
    [
        ("ml-100k", [36, 198, 310, 194, 80, 73, 52], 273),
        ("ml-1m", [222, 1103, 2096, 1193, 550, 496, 380], 1709),
    ],
)
def test_movielens_profiles(data_root, name, ages, women):
    features = loaded(name, data_root).user_features
    assert features.values.sum(0)[:8].tolist() == [*ages, women]
    assert features.values.sum(1).unique().tolist() == [3.0]


def test_douban_sample(data_root):
    folder = data_root / "mtms-samples"
    if not (folder / "douban_sample.csv").is_file():
        pytest.skip("needs mtms-samples in the folder of the public data sets")
    data = read_douban(folder)
    assert (len(data), data.n_users, data.n_items) == (1_936, 1_092, 1_681)
    assert Counter(data.domains) == {"book": 258, "movie": 1_162, "music": 261}


def test_ml_latest_small(data_root):
    stream = stream_of("ml-latest-small", data_root)
    assert len(stream.interactions) == 81_109
    assert column(stream, "interactions") == [48_665, 10_814, 10_814, 10_816]
    assert column(stream, "users") == [374, 466, 543, 609]
    assert column(stream, "items") == [1982, 2189, 2250, 2269]
    at = stream.interactions.item_names.index("11")
    assert stream.interactions.titles[at] == "American President, The (1995)"


def test_lastfm_2k(data_root):
    data = k_core(loaded("lastfm-2k", data_root), 5)
    assert (len(data), data.n_users, data.n_items) == (66_825, 1_152, 4_182)
    stream = temporal_blocks(data)
    for block in stream.blocks:
        splits = split_block(stream, block, "random", 0)
        in_train = splits.train.mask(block.n_items)
        for part in (splits.valid, splits.test):
            assert not bool(in_train[part.rows, part.values].any())


def test_ml_1m_is_read_but_refuses_times_where_they_are_constant(data_root):
    data = loaded("ml-1m", data_root)
    assert (len(data), data.n_users, data.n_items) == (1_000_209, 6_040, 3_706)
    assert "One Flew Over the Cuckoo's Nest (1975)" in data.titles
    if bool((data.time == 0).all()):
        with pytest.raises(UserError, match=r"needs timestamps, and ml-1m .* has none"):
            temporal_blocks(data)


def test_hetrec_says_which_file_it_read(data_root):
    data = loaded("hetrec2011-movielens", data_root)
    assert data.n_users == 2_113
    if "tag assignments" in data.source:
        assert data.n_items == 5_908
        assert (data.user * data.n_items + data.item).unique().numel() == 27_712
    assert "Toy story" in data.titles
    assert data.genres[data.item_names.index("1")][0] == "Adventure"


def test_listing_counts_what_is_present(data_root):
    found = {entry.name: entry for entry in list_data(data_root)}
    assert found["ml-100k"].present
    assert (found["ml-100k"].users, found["ml-100k"].interactions) == (943, 100_000)
