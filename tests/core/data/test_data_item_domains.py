"""Sets whose items belong to several organisations, on generated files."""

import gzip

import pytest

from coterie.core.data.interactions.cells import cut
from coterie.core.data.interactions.column_partitions import partition_columns, split_cells
from coterie.core.data.interactions.features import GENRES
from coterie.core.data.sources.own_file import read_own
from coterie.core.data.sources.readers import read_ml_10m
from coterie.core.data.sources.review_readers import read_amazon_domains, read_douban
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key

CATEGORIES = ("Books", "Digital_Music", "Movies_and_TV", "Video_Games")


def rows(data):
    return [
        (data.user_names[u], data.item_names[i], data.domains[i], r)
        for u, i, r in zip(
            data.user.tolist(), data.item.tolist(), data.rating.tolist(), strict=True
        )
    ]


def write_amazon(folder, order, prefix=""):
    """One file a category: the item of the same id, and one of its own."""
    for number, category in enumerate(CATEGORIES):
        shared = {"user": "A1C6M8LCIX4M6M", "item": "0001713353", "rating": "5.0"}
        own = {"user": f"A{number}HP7NVNPFMA4N", "item": f"B00000000{number}", "rating": "2.0"}
        lines = [",".join(row[name] for name in order) for row in (shared, own)]
        text = "".join(f"{line},{11238048 + number}\n" for line in lines)
        (folder / f"{prefix}{category}.csv").write_text(text)


@pytest.mark.parametrize(
    ("order", "prefix"),
    [(("item", "user", "rating"), ""), (("user", "item", "rating"), "ratings_")],
)
def test_amazon_items_of_two_categories_are_two_items(tmp_path, order, prefix):
    write_amazon(tmp_path, order, prefix)
    data = read_amazon_domains(tmp_path)
    assert (data.n_users, data.n_items, len(data)) == (5, 8, 8)
    assert rows(data)[:3] == [
        ("A1C6M8LCIX4M6M", "Books/0001713353", "Books", 5.0),
        ("A0HP7NVNPFMA4N", "Books/B000000000", "Books", 2.0),
        ("A1C6M8LCIX4M6M", "Digital_Music/0001713353", "Digital_Music", 5.0),
    ]
    assert data.domains == [category for category in CATEGORIES for _ in range(2)]
    assert data.time.unique().tolist() == [11238048, 11238049, 11238050, 11238051]


def test_amazon_users_of_ten_characters_are_no_items(tmp_path):
    for category in CATEGORIES:
        line = "B000000001,A123456789,3.0,5\n"
        (tmp_path / f"{category}.csv").write_text(line)
    assert read_amazon_domains(tmp_path).user_names == ["A123456789"]


def test_every_category_of_amazon_is_needed(tmp_path):
    write_amazon(tmp_path, ("item", "user", "rating"))
    (tmp_path / "Video_Games.csv").unlink()
    with pytest.raises(UserError, match=r"has no Video_Games\.csv or ratings_Video_Games\.csv"):
        read_amazon_domains(tmp_path)


def test_douban_of_three_files(tmp_path):
    for number, domain in enumerate(("book", "movie", "music")):
        text = f"user_id\t{domain}_id\trating\tcomment\n"
        text += f"{number}\t0\t{number + 1}\tgut, ja\n9\t4\t5\t\n"
        path = tmp_path / f"{domain}reviews_cleaned.txt"
        path.write_text(text, encoding="utf-8")
    data = read_douban(tmp_path)
    assert rows(data) == [
        ("0", "book/0", "book", 1.0),
        ("9", "book/4", "book", 5.0),
        ("1", "movie/0", "movie", 2.0),
        ("9", "movie/4", "movie", 5.0),
        ("2", "music/0", "music", 3.0),
        ("9", "music/4", "music", 5.0),
    ]
    (tmp_path / "moviereviews_cleaned.txt").write_text("user_id\trating\n1\t2\n")
    with pytest.raises(UserError, match=r"moviereviews_cleaned\.txt, line 1: .* 'movie_id'"):
        read_douban(tmp_path)


@pytest.mark.parametrize("zipped", [False, True])
def test_douban_of_one_table(tmp_path, zipped):
    text = "user_id,item_id,rating,domain,living_place,join_time\n"
    text += "1,7,1,book,北京,2007\n2,7,0,movie,,2008\n2,8,1,movie,,2008\n1,8,1,music,,2009\n"
    content = text.encode()
    path = tmp_path / ("douban.csv" + ".gz" * zipped)
    path.write_bytes(gzip.compress(content) if zipped else content)
    assert rows(read_douban(tmp_path)) == [
        ("1", "book/7", "book", 1.0),
        ("2", "movie/8", "movie", 1.0),
        ("1", "music/8", "music", 1.0),
    ]


def test_a_file_of_ones_own_names_the_domain_of_its_items(tmp_path):
    path = tmp_path / "shops.csv"
    path.write_text(
        "user,item,rating,shop,title\na,1,5,book,One\nb,1,3,film,Two\na,2,2,film,Three\nb,1,4,book,x\n"
    )
    data = read_own(path, {"domain": "shop"})
    assert rows(data) == [
        ("a", "book/1", "book", 5.0),
        ("b", "film/1", "film", 3.0),
        ("a", "film/2", "film", 2.0),
        ("b", "book/1", "book", 4.0),
    ]
    assert data.titles == ["One", "Two", "Three"]
    part = split_cells(4, Key.from_seed(0), 0.0, 0.0)
    partition = partition_columns(data, "user", "source", part, Key.from_seed(0))
    book, film = cut(data, "user", partition, part)
    assert (book.name, book.train.to_dense().tolist()) == ("book", [[5.0], [4.0]])
    assert (film.name, film.train.to_dense().tolist()) == ("film", [[0.0, 2.0], [3.0, 0.0]])


def test_a_column_called_domain_is_read_only_where_it_is_named(tmp_path):
    path = tmp_path / "shops.csv"
    path.write_text("user,item,domain\na,1,book\n")
    assert read_own(path).domains is None
    assert read_own(path).item_names == ["1"]
    assert read_own(path, {"domain": "domain"}).item_names == ["book/1"]


@pytest.mark.parametrize(("domain", "what"), [("", "is empty"), ("a/b", "holds a '/'")])
def test_domains_that_name_no_organisation_are_refused(tmp_path, domain, what):
    path = tmp_path / "shops.csv"
    path.write_text(f"user,item,shop\na,1,book\na,3,book\na,2,{domain}\n")
    with pytest.raises(UserError, match=f"line 4: column 'shop' {what}"):
        read_own(path, {"domain": "shop"})


def test_ml_10m_has_half_stars_and_the_genres_of_the_older_sets(tmp_path):
    (tmp_path / "ratings.dat").write_bytes(b"1::122::0.5::838985046\n2::185::4.5::838983525\n")
    (tmp_path / "movies.dat").write_bytes(
        b"122::Caf\xc3\xa9 (1992)::Children|Romance\n185::Net, The (1995)::Film-Noir|IMAX\n"
    )
    data = read_ml_10m(tmp_path)
    assert data.rating.tolist() == [0.5, 4.5]
    assert data.titles == ["Café (1992)", "Net, The (1995)"]
    assert data.genres == [["Children's", "Romance"], ["Film-Noir", "IMAX"]]
    assert set(data.genres[0]) <= set(GENRES)
